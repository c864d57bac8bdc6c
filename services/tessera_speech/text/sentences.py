"""Splits a text of any length into sentences that are synthesized one at a time.

A sentence ends at its punctuation or at a line's end. One that is longer than `MAX_CHARACTERS` is cut at a comma, else
between words, else within a word. Knows nothing about the alphabet of a model.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 240
"""Most characters of a sentence, about 15 s of speech: the work and memory of a synthesizer grow with its length."""
MIN_CHARACTERS = 12
"""Sentences with fewer characters join the next one: "Dr. Who?" sounds wrong in two parts."""

_CLOSERS = "\"'”’»)\\]"
_END = re.compile(rf"(?<=[.!?…;:])[{_CLOSERS}]*\s+|(?<=[。！？])[{_CLOSERS}]*\s*|\n\s*")
_PAUSE = re.compile(r"(?<=[,–—，、])\s*")
_SPACE = re.compile(r"\s+")


def split(text: str) -> list[str]:
    """The sentences of `text`, none empty or longer than `MAX_CHARACTERS`, every character but white space kept."""
    sentences: list[str] = []
    waiting = ""
    for part in _split_at(text, _END):
        joined = f"{waiting} {part}" if waiting else part
        if len(joined) < MIN_CHARACTERS:
            waiting = joined
            continue
        waiting = ""
        sentences += _fit(joined)
    return sentences + ([waiting] if waiting else [])


def _split_at(text: str, cut: re.Pattern[str]) -> list[str]:
    """`text` cut after each match; the match stays with what is before it, stripped."""
    ends = [match.end() for match in cut.finditer(text)]
    parts = [text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [part for part in parts if part]


def _fit(sentence: str) -> list[str]:
    """A sentence in parts of at most `MAX_CHARACTERS`, cut at the best places."""
    if len(sentence) <= MAX_CHARACTERS:
        return [sentence]
    for cut in (_PAUSE, _SPACE):
        parts = _split_at(sentence, cut)
        if len(parts) > 1:
            return [part for packed in _pack(parts) for part in _fit(packed)]
    return [sentence[start : start + MAX_CHARACTERS] for start in range(0, len(sentence), MAX_CHARACTERS)]


def _pack(parts: list[str]) -> list[str]:
    """Neighbouring parts joined as long as they fit. All of them together never fit, so `_fit` ends."""
    packed = [parts[0]]
    for part in parts[1:]:
        if len(packed[-1]) + 1 + len(part) <= MAX_CHARACTERS:
            packed[-1] = f"{packed[-1]} {part}"
        else:
            packed.append(part)
    return packed
