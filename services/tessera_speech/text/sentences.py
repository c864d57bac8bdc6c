"""Cutting a text of any length into sentences that are synthesized one at a time.

A sentence ends at its punctuation or at a line's end. One that is longer than `MAX_CHARACTERS` is cut at a comma, else
between words, else within a word. Does not know the model's alphabet.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 240
"""Attention and memory of a synthesizer grow with the sentence; this is about 15 s of speech."""
MIN_CHARACTERS = 12
"""Shorter sentences join the next one: "Dr. Who?" sounds wrong in pieces."""

_CLOSERS = "\"'”’»)\\]"
_END = re.compile(rf"(?<=[.!?…;:])[{_CLOSERS}]*\s+|(?<=[。！？])[{_CLOSERS}]*\s*|\n\s*")
_PAUSE = re.compile(r"(?<=[,–—，、])\s*")
_SPACE = re.compile(r"\s+")


def split(text: str) -> list[str]:
    """The sentences of `text`, none empty or longer than `MAX_CHARACTERS`, every character but white space kept."""
    sentences: list[str] = []
    waiting = ""
    for piece in _pieces(text, _END):
        joined = f"{waiting} {piece}" if waiting else piece
        if len(joined) < MIN_CHARACTERS:
            waiting = joined
            continue
        waiting = ""
        sentences += _fit(joined)
    return sentences + ([waiting] if waiting else [])


def _pieces(text: str, cut: re.Pattern[str]) -> list[str]:
    """`text` cut after each match; the match stays with what is before it, stripped."""
    ends = [match.end() for match in cut.finditer(text)]
    pieces = [text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


def _fit(sentence: str) -> list[str]:
    """A sentence in parts of at most `MAX_CHARACTERS`, cut at the best place there is."""
    if len(sentence) <= MAX_CHARACTERS:
        return [sentence]
    for cut in (_PAUSE, _SPACE):
        pieces = _pieces(sentence, cut)
        if len(pieces) > 1:
            return [part for packed in _pack(pieces) for part in _fit(packed)]
    return [sentence[start : start + MAX_CHARACTERS] for start in range(0, len(sentence), MAX_CHARACTERS)]


def _pack(pieces: list[str]) -> list[str]:
    """Neighbouring pieces joined as long as they fit. A single piece that is all of the text cannot come back whole."""
    packed = [pieces[0]]
    for piece in pieces[1:]:
        if len(packed[-1]) + 1 + len(piece) <= MAX_CHARACTERS:
            packed[-1] = f"{packed[-1]} {piece}"
        else:
            packed.append(piece)
    return packed
