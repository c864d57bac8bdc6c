"""Finds the turns of a live session: where somebody begins and ends to speak.

A detector gives a probability for each frame; `TurnDetector` finds where turns begin and end. Knows nothing about
events or sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tessera_speech.recordings.detectors import FRAME, RATE, Samples, SpeechDetector

FRAMES_TO_BEGIN = 3
"""Frames of speech in a row that begin a turn, so that a click does not."""
END_HYSTERESIS = 0.15
"""Distance below the threshold at which the probability of a frame counts as silence."""


@dataclass(frozen=True)
class TurnEvent:
    """The beginning or the end of a turn; `at` counts samples since the session began."""

    kind: Literal["started", "stopped"]
    at: int


class TurnDetector:
    """Finds the turns of one stream of audio.

    Args:
        detector: detector of speech for this stream.
        threshold: least probability of a frame of speech.
        silence_ms: milliseconds of silence that end a turn.
        position: samples of the session before the stream.
    """

    def __init__(self, detector: SpeechDetector, *, threshold: float, silence_ms: int, position: int = 0) -> None:
        self.speaking = False
        self.position = position
        self._detector = detector
        self._threshold = threshold
        self._silence = max(1, round(silence_ms * RATE / 1000 / FRAME))
        self._rest = np.zeros(0, dtype=np.float32)
        self._above = self._below = 0

    def feed(self, samples: Samples) -> Iterator[TurnEvent]:
        """Process more audio, float32 of any length at `RATE`. Yields events as soon as they are known."""
        waiting = np.concatenate([self._rest, samples])
        complete = waiting.size // FRAME * FRAME
        self._rest = waiting[complete:]
        for begin in range(0, complete, FRAME):
            probability = self._detector.probability(waiting[begin : begin + FRAME])
            self.position += FRAME
            if turn := self._update(probability):
                yield turn

    def reset(self) -> None:
        """End the turn without an event, because its audio has been taken."""
        self.speaking = False
        self._above = self._below = 0

    def _update(self, probability: float) -> TurnEvent | None:
        if not self.speaking:
            self._above = self._above + 1 if probability >= self._threshold else 0
            if self._above < FRAMES_TO_BEGIN:
                return None
            self.speaking, self._above, self._below = True, 0, 0
            return TurnEvent("started", self.position - FRAMES_TO_BEGIN * FRAME)
        self._below = self._below + 1 if probability < self._threshold - END_HYSTERESIS else 0
        if self._below < self._silence:
            return None
        self.reset()
        return TurnEvent("stopped", self.position)
