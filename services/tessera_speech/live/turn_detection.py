"""When somebody speaks: how likely each frame of sound is speech, and where turns begin and end.

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
"""In a row, so that a click is no turn."""
HYSTERESIS = 0.15
"""How far under the threshold a frame must be to count as silence."""


@dataclass(frozen=True)
class TurnEvent:
    """A turn begins or ends. `at`: samples since the session began."""

    kind: Literal["started", "stopped"]
    at: int


class TurnDetector:
    """Follows one stream of sound.

    Args:
        detector: of this stream.
        threshold: least probability of speech.
        silence_ms: after which a turn has ended.
        position: samples that came before.
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
        """More sound: float32 of any length at `RATE`. Turns are told as soon as they are known."""
        waiting = np.concatenate([self._rest, samples])
        whole = waiting.size // FRAME * FRAME
        self._rest = waiting[whole:]
        for begin in range(0, whole, FRAME):
            probability = self._detector.probability(waiting[begin : begin + FRAME])
            self.position += FRAME
            if turn := self._judge(probability):
                yield turn

    def reset(self) -> None:
        """Nobody speaks now: what was heard has been taken away."""
        self.speaking = False
        self._above = self._below = 0

    def _judge(self, probability: float) -> TurnEvent | None:
        if not self.speaking:
            self._above = self._above + 1 if probability >= self._threshold else 0
            if self._above < FRAMES_TO_BEGIN:
                return None
            self.speaking, self._above, self._below = True, 0, 0
            return TurnEvent("started", self.position - FRAMES_TO_BEGIN * FRAME)
        self._below = self._below + 1 if probability < self._threshold - HYSTERESIS else 0
        if self._below < self._silence:
            return None
        self.reset()
        return TurnEvent("stopped", self.position)
