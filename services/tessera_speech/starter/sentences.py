"""Draws English sentences to speak: templates over some hundred everyday words and many thousand frequent ones.

The wheel `wordfreq` tells which words are frequent, `lemminflect` their parts of speech, and the dictionary in the
wheel `pocketsphinx` which can be pronounced; all three are training dependencies. The sentences are grammatical, not
sensible. Whether a sentence is for training or held out follows from its words alone, so no seed can mix the two. Knows
nothing about speech.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FREQUENT_WORDS = 14_000
HELD_OUT_SHARE = 16
"""One sentence in 16 is held out."""

_LISTS = {
    "person": "man woman boy girl child doctor teacher farmer lawyer driver student neighbor sister brother mother "
    "father daughter friend nurse captain soldier artist writer singer cook manager president officer guest baker "
    "king queen uncle aunt engineer scientist tailor sailor judge visitor",
    "name": "mary john peter alice david susan robert linda james anna michael laura thomas helen george emma",
    "place": "house garden kitchen city village school hospital market office station library church museum park "
    "forest river mountain beach island harbor hotel restaurant theater bridge street square farm field valley "
    "airport factory castle tower cellar room hall shop bank yard",
    "thing": "book letter picture table chair window door key lamp clock box bag coat hat shirt shoe ring watch phone "
    "computer camera paper pencil knife spoon plate cup bottle basket bed blanket mirror map ticket newspaper song "
    "story question answer plan idea car bicycle boat train ship engine wheel machine tool hammer rope stone flower "
    "tree apple cake bread cheese egg fish soup dinner breakfast dog cat horse bird cow sheep rabbit ball gift coin",
    "mass": "water milk coffee tea sugar salt rice money gold silver glass wood music work time food snow rain wind "
    "light weather help advice news bread butter meat fruit",
    "adjective": "old young new big small long short tall heavy light dark bright clean dirty cheap expensive quick "
    "slow strong weak hard soft warm cold hot fresh dry wet rich poor happy sad angry quiet loud kind brave clever "
    "famous strange simple difficult important beautiful ugly empty full deep narrow wide round white black red green "
    "blue yellow brown gray wonderful terrible modern ancient secret common useful broken lost early late",
    "did": "saw found lost bought sold took brought carried opened closed cleaned painted built broke fixed wanted "
    "needed liked loved hated watched followed remembered forgot described sent kept left moved touched pushed pulled "
    "threw caught dropped hid showed borrowed stole chose ordered cut washed counted checked used noticed missed",
    "do": "see find lose buy sell take bring carry open close clean paint build break fix want need like love hate "
    "watch follow remember forget describe send keep leave move touch push pull throw catch drop hide show borrow "
    "steal choose order cut wash count check use notice miss",
    "went": "walked ran drove sailed traveled hurried moved returned rode jumped climbed looked pointed came went",
    "rested": "slept waited laughed cried smiled worked sang danced shouted whispered stopped disappeared arrived "
    "stayed sat stood talked",
    "adverb": "slowly quickly quietly suddenly carefully finally usually often always never gladly easily softly "
    "loudly really already soon almost probably certainly",
    "when": "today|yesterday|tomorrow|last night|every morning|in the evening|after lunch|before dinner|at noon|"
    "in the winter|last summer|two days ago|a long time ago|this afternoon|on monday|on friday|next week|last year|"
    "at the end of the month|for the first time|once again|all day long|in the middle of the night",
    "number": "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred",
    "toward": "to|into|from|toward|past|across|behind|around|through",
    "at": "in|at|near|behind|in front of|outside|inside|next to",
    "because": "because|although|while|when|after|before|and|but|so|until",
    "said": "said thought knew believed hoped heard felt explained told_us promised",
}

_PATTERNS = (
    "the {person} {did} the {thing} {when}",
    "the {adjective} {person} {did} a {adjective} {thing} {at} the {place}",
    "{name} {did} the {adjective} {thing} and {went} {toward} the {place}",
    "{when} we {did} the {thing} {at} the {adjective} {place}",
    "my {person} {adverb} {went} {toward} the {place}, {because} the {person} {rested}",
    "there were {number} {noun} {things} {at} the {place}",
    "did you {do} the {adjective} {thing} {when}?",
    "why did the {person} {do} the {thing}?",
    "who {did} the {thing} {at} the {place}?",
    "where is the {adjective} {noun}?",
    "please {do} the {thing} {adverb}!",
    "i {said} that the {noun} was {adjective} and the {thing} was {adjective}",
    "she {said} that {name} would {do} the {thing} {when}",
    "if you {do} the {adjective} {thing}, the {person} will {verb} it",
    "the {noun} of the {noun} is very {adjective}",
    "he wanted to {verb} the {noun}, but they {adverb} {did} the {things}",
    "some {mass} and {number} {things} are {at} the {noun}",
    "we have never {verbed} such a {adjective_any} {noun}",
    "{name} is {verbing} the {noun} with a {adjective_any} {thing}",
    "the {adjective_any} {nouns} {verbed} {adverb_any}",
    "it was a {adjective} day, and the {nouns} were {verbing} {at} the {place}",
    "you can {verb} the {noun} {when}, or you can {do} the {adjective_any} {thing}",
    "they {verbed} their {adjective_any} {noun} {toward} the {place}",
    "no one {said} how the {person} {verbed} the {noun}",
    "the {person} and the {person} {rested} {at} the {place} {when}",
    "our {noun} has more {nouns} than your {noun}",
)
_TAGS = {
    "noun": "NN",
    "nouns": "NNS",
    "verb": "VB",
    "verbed": "VBD",
    "verbing": "VBG",
    "adjective_any": "JJ",
    "adverb_any": "RB",
}
_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_WORDS = re.compile(r"[a-z]{2,}(?:'[a-z]+)?")
_LETTERS = re.compile(r"[a-z]{2,14}")


@cache
def frequent_words() -> tuple[str, ...]:
    """The most frequent words that the dictionary of pronunciations has, the most frequent first."""
    listed = importlib.import_module("wordfreq").top_n_list("en", 2 * FREQUENT_WORDS)
    pronounced = _pronounced()
    words = [word for word in listed if word in pronounced and (word in {"a", "i"} or _WORDS.fullmatch(word))]
    return tuple(words[:FREQUENT_WORDS])


@cache
def _lists() -> dict[str, tuple[str, ...]]:
    """The words of every slot of the templates."""
    inflect: Any = importlib.import_module("lemminflect")
    lists = {
        slot: tuple(words.split("|")) if "|" in words else tuple(word.replace("_", " ") for word in words.split())
        for slot, words in _LISTS.items()
    }
    lists["things"] = tuple(inflect.getInflection(word, "NNS")[0] for word in lists["thing"])
    pronounced = _pronounced()
    found: dict[str, set[str]] = {slot: set() for slot in _TAGS}
    for word in frequent_words():
        # The commonest words are mostly function words that also are listed as nouns.
        if not _LETTERS.fullmatch(word) or len(word) < 4:
            continue
        kinds = inflect.getAllLemmas(word)
        if len(kinds) != 1:
            continue
        (lemma,) = next(iter(kinds.values()))[:1]
        forms = inflect.getAllInflections(lemma)
        for slot, tag in _TAGS.items():
            found[slot].update(form for form in forms.get(tag, ()) if form in pronounced and _LETTERS.fullmatch(form))
    return lists | {slot: tuple(sorted(words)) for slot, words in found.items()}


@cache
def _pronounced() -> frozenset[str]:
    """The lower-case words of pocketsphinx's dictionary."""
    directory = importlib.import_module("pocketsphinx").get_model_path()
    lines = Path(directory, "en-us", "cmudict-en-us.dict").read_text(encoding="utf-8").splitlines()
    return frozenset(line.split(maxsplit=1)[0] for line in lines if line)


def held_out(sentence: str) -> bool:
    """Whether the sentence is held out, which follows from its words, whatever their case and punctuation."""
    words = " ".join(_WORD.findall(sentence.lower()))
    return hashlib.sha256(words.encode()).digest()[0] % HELD_OUT_SHARE == 0


def grammatical(random: np.random.Generator) -> str:
    """Draw a sentence from a template, in lower case, with its punctuation."""
    lists = _lists()
    pattern = _PATTERNS[random.integers(len(_PATTERNS))]
    text = _SLOT.sub(lambda slot: _pick(lists[slot[1]], random), pattern)
    text = re.sub(r"\ba (?=[aeiou])", "an ", text)
    if random.random() < 0.15 and pattern[-1] not in "?!":
        also = [_pick(lists[slot], random) for slot in ("because", "name", "rested")]
        text = f"{text}, {' '.join(also)}"
    return text if text[-1] in "?!" else text + "."


def strung(random: np.random.Generator) -> str:
    """Draw frequent words in random order, with commas: less natural, but every word occurs."""
    words = frequent_words()
    count = int(random.integers(3, 13))
    # Half by frequency (Zipf), half uniformly.
    ranks = np.where(
        random.random(count) < 0.5,
        np.exp(random.random(count) * np.log(len(words))) - 1,
        random.random(count) * len(words),
    ).astype(int)
    text: str = words[int(ranks[0])]
    for rank in ranks[1:].tolist():
        text += (", " if random.random() < 0.1 else " ") + words[rank]
    return text + _pick("...?!", random)


def training(random: np.random.Generator, *, natural: float = 0.5) -> Iterator[str]:
    """Yield sentences without end, none of which is held out.

    Args:
        random: source of randomness.
        natural: share of grammatical sentences, 0 to 1.
    """
    while True:
        sentence = grammatical(random) if random.random() < natural else strung(random)
        if not held_out(sentence):
            yield sentence


def evaluation(random: np.random.Generator) -> Iterator[str]:
    """Yield held-out grammatical sentences without end."""
    while True:
        sentence = grammatical(random)
        if held_out(sentence):
            yield sentence


def _pick(choices: Sequence[str], random: np.random.Generator) -> str:
    return choices[int(random.integers(len(choices)))]
