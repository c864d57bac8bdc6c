"""Speech detectors: how likely each frame of a recording or a live session is speech."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]


RATE = 16_000


FRAME = 512
"""Samples of a frame: 32 ms."""


class SpeechDetector(Protocol):
    """Finds speech in one stream of sound."""

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
        """See `SpeechDetector`."""
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
