"""When somebody speaks: how likely each frame of sound is speech, and where turns begin and end.

A detector says a probability for each frame; `Turns` knows no detector but by that. `EnergyDetector` needs no model and
takes for speech whatever is clearly louder than what was there before. Does not know events or sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]
RATE = 16_000
FRAME = 512
"""Samples of a frame: 32 ms."""
FRAMES_TO_BEGIN = 3
"""In a row, so that a click is no turn."""
HYSTERESIS = 0.15
"""How far under the threshold a frame must be to count as silence."""


class Detector(Protocol):
    """Hears one session."""

    def probability(self, frame: Samples) -> float:
        """How likely a frame is speech.

        Args:
            frame: float32 of shape [FRAME] at `RATE`, within -1 and 1; frames come in their order.

        Returns:
            0 to 1.
        """
        ...


class EnergyDetector:
    """Louder by some decibels than the quietest there was lately, and than a whisper of noise."""

    def __init__(self) -> None:
        self._floor = QUIETEST_DB

    def probability(self, frame: Samples) -> float:
        """See `Detector`."""
        level = 10 * math.log10(float(np.mean(np.square(frame, dtype=np.float64))) + 1e-10)
        if level < self._floor:
            self._floor = max(level, QUIETEST_DB)
        else:
            self._floor = min(self._floor + RISE_DB, LOUDEST_FLOOR_DB)
        return 1 / (1 + math.exp(-(level - max(self._floor + ABOVE_DB, LEAST_DB)) / SLOPE_DB))


QUIETEST_DB = -65.0
LOUDEST_FLOOR_DB = -35.0
RISE_DB = 0.03
"""Of the floor in each frame: about 1 dB a second."""
ABOVE_DB = 12.0
LEAST_DB = -40.0
SLOPE_DB = 2.0


@dataclass(frozen=True)
class Turn:
    """A turn begins or ends. `at`: samples since the session began."""

    kind: Literal["started", "stopped"]
    at: int


class Turns:
    """Follows one stream of sound.

    Args:
        detector: of this stream.
        threshold: least probability of speech.
        silence_ms: after which a turn has ended.
        position: samples that came before.
    """

    def __init__(self, detector: Detector, *, threshold: float, silence_ms: int, position: int = 0) -> None:
        self.speaking = False
        self.position = position
        self._detector = detector
        self._threshold = threshold
        self._silence = max(1, round(silence_ms * RATE / 1000 / FRAME))
        self._rest = np.zeros(0, dtype=np.float32)
        self._above = self._below = 0

    def hear(self, samples: Samples) -> Iterator[Turn]:
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

    def _judge(self, probability: float) -> Turn | None:
        if not self.speaking:
            self._above = self._above + 1 if probability >= self._threshold else 0
            if self._above < FRAMES_TO_BEGIN:
                return None
            self.speaking, self._above, self._below = True, 0, 0
            return Turn("started", self.position - FRAMES_TO_BEGIN * FRAME)
        self._below = self._below + 1 if probability < self._threshold - HYSTERESIS else 0
        if self._below < self._silence:
            return None
        self.reset()
        return Turn("stopped", self.position)
