"""Plans the sentences that an engine synthesizes for a text, and finds the times of words from their tokens.

Knows the alphabet of the model, and nothing about its voices or audio.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tessera.errors import InvalidRequestError
from tessera.wire.audio import SpokenWord
from tessera.wire.engine import Utterance
from tessera_speech.text import ssml
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.sentences import split
from tessera_speech.text.traced_text import Span, TracedText

_WORD = re.compile(r"\S+")
_EDGES = ".,;:!?\"'()[]{}<>…—–‘’“”«»*_"


@dataclass(frozen=True)
class WordTokens:
    """A word of the text, its offset in the text, and the first and last token of its sentence that stand for it."""

    word: str
    offset: int
    first: int
    last: int


@dataclass
class SpeechPlan:
    """The sentences of a text in order, and the words of each."""

    sentences: list[Utterance] = field(default_factory=list)
    words: list[list[WordTokens]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of tokens of all sentences."""
        return sum(len(sentence.token_ids) for sentence in self.sentences)


def plan_text(text: str, characters: CharacterTokenizer, *, markup: bool = True) -> SpeechPlan:
    """The plan of `text`, which with `markup` may be SSML, for a model of characters.

    Raises:
        InvalidRequestError: malformed SSML, or nothing that the model can speak.
    """
    script = ssml.parse(text) if markup and ssml.is_ssml(text) else ssml.Script(text)
    if script.replacements and not characters.normalizes:
        raise InvalidRequestError(
            "`input` has `say-as` or `sub`, which are read out in English letters; this model is not for them",
            param="input",
            code="invalid_ssml",
        )
    plan = plan_script(script, characters.normalize, lambda sentence, _: characters.encode_with_places(sentence))
    if not plan.tokens:
        raise InvalidRequestError("`input` has no character that the model can speak", param="input")
    return plan


def plan_script(
    script: ssml.Script,
    normalize: Callable[[TracedText], TracedText],
    encode: Callable[[str, Sequence[Span]], list[tuple[int, int]]],
) -> SpeechPlan:
    """The plan of a script.

    Args:
        script: the text and how to speak it.
        normalize: writes numbers and symbols out in words.
        encode: (sentence, span of the text that each character comes from) → token ids, each with the index of its
            character, or -1.
    """
    plan = SpeechPlan()
    words = [match.span() for match in _WORD.finditer(script.text)]
    begin = 0
    for place, seconds in [*script.pauses, (len(script.text), 0.0)]:
        for sentence, origins in split_script(script, begin, place, normalize):
            placed = encode(sentence, origins)
            if any(sentence[at].isalnum() for _, at in placed if at >= 0):
                plan.sentences.append(_utterance(placed, origins, script.rates))
                plan.words.append(_word_tokens(placed, sentence, origins, script.text, words))
        if seconds > 0:
            add_pause(plan, seconds)
        begin = place
    return plan


def word_times(words: Sequence[WordTokens], token_samples: Sequence[int], *, begin: int, rate: int) -> list[SpokenWord]:
    """Times of the words of a sentence.

    Args:
        words: words of the sentence.
        token_samples: samples that each token lasts.
        begin: first sample of the sentence in the audio of the text.
        rate: samples per second.
    """
    ends = [begin, *(begin + sum_ for sum_ in accumulate(token_samples))]
    return [
        SpokenWord(
            word=word.word,
            offset=word.offset,
            start=round(ends[word.first] / rate, 3),
            end=round(ends[word.last + 1] / rate, 3),
        )
        for word in words
    ]


def split_script(
    script: ssml.Script, begin: int, end: int, normalize: Callable[[TracedText], TracedText]
) -> Iterator[tuple[str, list[Span]]]:
    """The sentences of a part of the text, normalized, with the span of the text that each character comes from."""
    last = begin
    parts: list[TracedText] = []
    for first, stop, replacement in script.replacements:
        if begin <= first < end:
            parts += [_cut(script.text, last, first), TracedText(replacement, [(first, stop)] * len(replacement))]
            last = stop
    parts.append(_cut(script.text, last, end))
    joined = TracedText("".join(part.text for part in parts), [origin for part in parts for origin in part.origins])
    normalized = normalize(joined)
    characters = zip(normalized.text, normalized.origins, strict=True)
    visible = (origin for character, origin in characters if not character.isspace())
    for sentence in split(normalized.text):
        # Splitting changes white space only: all other characters keep their order.
        yield sentence, [(-1, -1) if character.isspace() else next(visible) for character in sentence]


def _cut(text: str, begin: int, end: int) -> TracedText:
    return TracedText(text[begin:end], [(at, at + 1) for at in range(begin, end)])


def _utterance(
    placed: Sequence[tuple[int, int]], origins: Sequence[Span], rates: Sequence[tuple[int, int, float]]
) -> Utterance:
    token_ids = [token for token, _ in placed]
    if not rates:
        return Utterance(token_ids=token_ids)
    found: list[float] = []
    for _, at in placed:
        origin = origins[at][0] if at >= 0 else -1
        # A token between two characters has the speed of the one before it.
        kept = found[-1] if found else 1.0
        found.append(next((rate for begin, end, rate in rates if begin <= origin < end), 1.0) if origin >= 0 else kept)
    return Utterance(token_ids=token_ids, rates=found if any(rate != 1.0 for rate in found) else [])


def _word_tokens(
    placed: Sequence[tuple[int, int]], sentence: str, origins: Sequence[Span], text: str, words: Sequence[Span]
) -> list[WordTokens]:
    """The words of a sentence. Words that are read as one, like `$3.5 million`, are one."""
    merged: list[tuple[int, int, int, int]] = []
    begins = [begin for begin, _ in words]
    for number, (_, at) in enumerate(placed):
        if at < 0 or origins[at][0] < 0 or not sentence[at].isalnum():
            continue
        origin = origins[at]
        first = bisect_right(begins, origin[0]) - 1
        last = bisect_right(begins, origin[1] - 1) - 1
        if first < 0:
            continue
        if merged and first <= merged[-1][1]:
            before = merged[-1]
            merged[-1] = (before[0], max(before[1], last), before[2], number)
        else:
            merged.append((first, last, number, number))
    found: list[WordTokens] = []
    for first, last, token, end in merged:
        written = text[words[first][0] : words[last][1]]
        left = len(written) - len(written.lstrip(_EDGES))
        found.append(WordTokens(written.strip(_EDGES) or written, words[first][0] + left, token, end))
    return found


def add_pause(plan: SpeechPlan, seconds: float) -> None:
    """Add silence at the end of the plan."""
    if not plan.sentences:
        plan.sentences.append(Utterance(pause_s=seconds))
        plan.words.append([])
        return
    before = plan.sentences[-1]
    plan.sentences[-1] = Utterance(
        token_ids=before.token_ids, rates=before.rates, pause_s=round(before.pause_s + seconds, 6)
    )
