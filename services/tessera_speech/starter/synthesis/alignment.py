"""Aligns letters with phonemes: a monotone alignment, learned from pairs of spelling and pronunciation.

Every letter speaks none to three units. Their probabilities come from counting the best alignments of all pairs,
repeatedly (Viterbi training). The alignment turns the teacher's durations of phonemes into durations of letters. Knows
nothing about audio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

MAX_UNITS = 3
ROUNDS = 4
_STRESS = str.maketrans("", "", "ˈˌ")
_PAUSES = frozenset(" ,.?!;:-")
_IMPOSSIBLE = -1e9
_FIRST_GUESS = (-2.0, 0.0, -2.5, -6.0)
"""Initial scores of a letter that speaks none, one, two or three units."""
_LIKELY = {
    "b": "b", "c": "ks", "d": "dɾ", "f": "f", "g": "ɡ", "h": "h", "j": "d", "k": "k", "l": "l", "m": "m", "n": "nŋ",
    "p": "p", "q": "k", "r": "ɹɚ", "s": "sz", "t": "tɾ", "v": "v", "w": "w", "x": "k", "y": "ijɪa", "z": "z",
    "a": "æaeɐəɑɔ", "e": "ɛiəᵻ", "i": "ɪiaᵻ", "o": "oɑɔəʌ", "u": "uʌjʊɜ",
}  # fmt: skip


class Aligner:
    """An alignment model, which has initial scores until `fit` is called."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], float] = {}
        self._words: dict[tuple[str, tuple[str, ...]], list[int] | None] = {}

    def fit(self, pairs: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Learn from texts with their spoken units."""
        kept = list(pairs)
        for _ in range(ROUNDS):
            counts: Counter[tuple[str, str]] = Counter()
            for text, units in kept:
                spoken = self.align(text, units)
                if spoken is not None:
                    counts.update(zip(text, chunks(units, spoken), strict=True))
            letters: Counter[str] = Counter()
            for (letter, _chunk), count in counts.items():
                letters[letter] += count
            merged: Counter[tuple[str, str]] = Counter()
            for (letter, chunk), count in counts.items():
                merged[letter, chunk.translate(_STRESS)] += count
            self._logs = {key: math.log(count / letters[key[0]]) for key, count in merged.items()}
            self._words = {}

    def align(self, text: str, units: Sequence[str]) -> list[int] | None:
        """The number of units that each character of `text` speaks; None when text and units do not fit.

        Args:
            text: text in lower case, with its spaces and punctuation.
            units: units of the teacher, without the silence at the end.
        """
        spelled, spoken = _split(text), _split(units)
        if len(spelled) != len(spoken):
            # Some words are spoken as one ("of the"), so the whole sentence is aligned at once.
            return self._best(text, tuple(units))
        aligned: list[int] = []
        for index, (letters, sounds) in enumerate(zip(spelled, spoken, strict=True)):
            if index:
                aligned.append(1)
            key = "".join(letters), tuple(sounds)
            if key not in self._words:
                self._words[key] = self._best(*key)
            best = self._words[key]
            if best is None:
                return None
            aligned += best
        return aligned

    def _best(self, text: str, units: tuple[str, ...]) -> list[int] | None:
        bare = [unit.translate(_STRESS) for unit in units]
        size = len(units) + 1
        scores = [0.0] + [_IMPOSSIBLE] * (size - 1)
        taken: list[list[int]] = []
        for letter in text:
            following, choices = [_IMPOSSIBLE] * size, [0] * size
            for start, score in enumerate(scores):
                if score <= _IMPOSSIBLE:
                    continue
                for count in range(min(MAX_UNITS, size - 1 - start) + 1):
                    total = score + self._score(letter, bare[start : start + count])
                    if total > following[start + count]:
                        following[start + count], choices[start + count] = total, count
            scores = following
            taken.append(choices)
        if scores[-1] <= _IMPOSSIBLE / 2:
            return None
        counts, position = [], size - 1
        for choices in reversed(taken):
            counts.append(choices[position])
            position -= choices[position]
        return counts[::-1]

    def _score(self, letter: str, units: list[str]) -> float:
        if letter in _PAUSES:
            return (0.0 if units == [letter] else _IMPOSSIBLE) if units else -1.0
        if any(unit in _PAUSES for unit in units):
            return _IMPOSSIBLE
        if self._logs:
            return self._logs.get((letter, "".join(units)), -9.0 - len(units))
        likely = bool(units) and units[0][0] in _LIKELY.get(letter, "")
        return _FIRST_GUESS[len(units)] + (2.0 if likely else 0.0)


def chunks(units: Sequence[str], spoken: Sequence[int]) -> list[str]:
    """The units of each character, joined to one string."""
    ends = np.cumsum(spoken)
    return ["".join(units[end - count : end]) for end, count in zip(ends, spoken, strict=True)]


def letter_frames(spoken: Sequence[int], frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Duration of each character in frames, at least one, which sum to those of `frames`; None when there are too few.

    Args:
        spoken: number of units of each character.
        frames: duration of each unit [units + 1]; the last is the final silence, which counts for the last character.
    """
    ends = np.concatenate([[0], np.cumsum(frames)])[np.cumsum(spoken)]
    ends[-1] = frames.sum()
    count = len(ends)
    if frames.sum() < count:
        return None
    # A silent letter takes a frame from the letter before it or, if none is left, from those after it.
    steps = np.arange(count)
    slack = np.minimum.accumulate((ends - steps)[::-1])[::-1]
    return np.diff(np.maximum(slack, 1) + steps, prepend=0)


def _split(sequence: Sequence[str]) -> list[list[str]]:
    words: list[list[str]] = [[]]
    for one in sequence:
        if one == " ":
            words.append([])
        else:
            words[-1].append(one)
    return words
