"""Draws sentences of a grammar over the words of `words.txt`, and tells which are held out.

The words are frequent ones, sorted by kind. Of words that sound alike one is kept, because nobody could distinguish
them where the grammar does not. Sentences are grammatical, seldom sensible. Knows nothing about how they are spoken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import numpy as np

HELD_OUT_SHARE = 8
"""One sentence in 8 is held out, by its checksum, so that the split is the same everywhere."""
VOWELS = frozenset("aeiou")
LEAST_HELD_OUT_WORDS = 4

# A lower-case name is a kind of word of `words.txt`, a capitalised one a rule, and `=word` stands for itself. Of a pair
# of verb forms `.base` is the first and `.past` the second.
GRAMMAR: dict[str, tuple[str, ...]] = {
    "Sentence": (
        "Subject transitive.past Object",
        "Subject transitive.past Object Where",
        "Subject transitive.past Object adverb",
        "When Subject transitive.past Object",
        "Subject modal transitive.base Object",
        "Subject modal transitive.base Object When",
        "Subject modal =not transitive.base Object",
        "Subject =did =not transitive.base Object",
        "Subject modal intransitive.base Where",
        "Subject modal adverb intransitive.base When",
        "Subject intransitive.past Where",
        "Subject intransitive.past adverb Where",
        "Subject intransitive.past =to =the place =of land",
        "Subject intransitive.past =for number plural",
        "Subject intransitive.past join Subject transitive.past Object",
        "Subject transitive.past Object join Subject transitive.past Object",
        "Subject link adjective join Subject intransitive.past",
        "Subject link adjective =and adjective",
        "Subject being adverb adjective",
        "Subject being =more adjective =than Object",
        "=the noun preposition =the place being adjective",
        "Many being =not adjective",
        "Many transitive.past Object Where",
        "name =and name transitive.past Many",
        "name =said =that Subject transitive.past Object",
        "name =of land intransitive.past When",
        "question modal Subject transitive.base Object",
        "question =did Subject transitive.base Object",
        "question being =the adjective noun",
        "=did Subject transitive.base Object Where",
        "modal person transitive.base Object When",
        "=please transitive.base Object Where",
        "=let =us transitive.base Object",
        "filler Subject being adjective",
        "filler name =thank =you =for =the noun",
        "=there being Many Where",
        "=it being ordinal noun =of =the noun",
        "=the ordinal noun being =from land",
        "=the noun =costs number number plural",
        "=of =all =the plural number being adjective",
        "Doing =the noun being adjective",
        "Subject being Doing Object",
        "Subject =has Done Object",
        "Subject =has =done Many =as =well =as Many",
    ),
    "Subject": ("person", "person", "name", "=the noun", "determiner noun", "owner noun", "=the adjective noun"),
    "Object": (
        "object",
        "name",
        "=the noun",
        "=the noun",
        "determiner noun",
        "owner noun",
        "=the adjective noun",
        "determiner adjective noun",
        "Many",
        "other noun",
    ),
    "Many": ("plural", "=the plural", "number plural", "number plural", "many adjective plural", "owner plural"),
    "Where": (
        "preposition =the place",
        "preposition =the place",
        "preposition determiner place",
        "preposition owner noun",
        "preposition =the noun",
        "=out =of =the place",
        "=back =to land",
        "=here",
        "=at =the adjective place",
    ),
    "When": (
        "time",
        "=on weekday",
        "=in calendar",
        "=on weekday time",
        "=on =the ordinal =of calendar",
        "=last noun",
        "number plural =ago",
        "=at number",
        "=by weekday",
    ),
    "Doing": ("=making", "=taking", "=looking =at", "=playing =with", "=going =to", "=working =for", "=waiting =for"),
    "Done": ("=gone =to", "=seen", "=taken", "=given", "=written", "=spoken =of", "=thought =about"),
}


@cache
def kinds() -> dict[str, tuple[str, ...]]:
    """The words of every kind; verbs have the kinds `kind.base` and `kind.past` too."""
    found: dict[str, tuple[str, ...]] = {}
    for line in files(__package__).joinpath("words.txt").read_text(encoding="utf-8").splitlines():
        kind, _, words = line.partition(": ")
        if "|" in words:
            pairs = [pair.split() for pair in words.split("|")]
            found[f"{kind}.base"] = tuple(pair[0] for pair in pairs)
            found[f"{kind}.past"] = tuple(pair[1] for pair in pairs)
        else:
            found[kind] = tuple(words.split())
    return found


@cache
def vocabulary() -> tuple[str, ...]:
    """All words, sorted."""
    words = {word for kind in kinds().values() for word in kind}
    fixed = {part[1:] for rules in GRAMMAR.values() for rule in rules for part in rule.split() if part[0] == "="}
    return tuple(sorted(words | fixed))


def is_held_out(sentence: str) -> bool:
    """Whether `sentence` (words between single blanks) is never trained on."""
    return hashlib.sha256(sentence.encode()).digest()[0] % HELD_OUT_SHARE == 0


def grammatical(random: np.random.Generator) -> str:
    """Draw a sentence of the grammar, of 3 to about 14 words."""
    words = list(_expand("Sentence", random))
    for index in range(len(words) - 1):
        if words[index] == "a" and words[index + 1][0] in VOWELS:
            words[index] = "an"
    return " ".join(words)


def scrambled(random: np.random.Generator, shortest: int, longest: int) -> str:
    """Draw `shortest` to `longest` words, all equally likely, in any order."""
    words = vocabulary()
    return " ".join(words[index] for index in random.integers(len(words), size=random.integers(shortest, longest + 1)))


def held_out(random: np.random.Generator, *, scramble: bool = False) -> str:
    """Draw a held-out sentence; with `scramble` one of 4 to 8 words in any order."""
    while True:
        sentence = scrambled(random, LEAST_HELD_OUT_WORDS, 8) if scramble else grammatical(random)
        if is_held_out(sentence) and sentence.count(" ") >= LEAST_HELD_OUT_WORDS - 1:
            return sentence


def _expand(symbol: str, random: np.random.Generator) -> Iterator[str]:
    if symbol[0] == "=":
        yield symbol[1:]
    elif symbol in GRAMMAR:
        rules = GRAMMAR[symbol]
        for part in rules[int(random.integers(len(rules)))].split():
            yield from _expand(part, random)
    else:
        words = kinds()[symbol]
        yield words[int(random.integers(len(words)))]
