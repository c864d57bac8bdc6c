"""Speech detectors: the probability of speech in each frame of a recording or a live session.

`EnergyDetector` needs no model; `tessera_speech.recordings.voice_activity` has the one with a model.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]
"""Audio samples within -1 and 1."""
RATE = 16_000
"""Samples per second."""
FRAME = 512
"""Samples of a frame: 32 ms."""
QUIETEST_DB = -65.0
"""Lowest noise floor, in dB below full scale."""
LOUDEST_FLOOR_DB = -35.0
"""Highest noise floor."""
RISE_DB = 0.03
"""Rise of the noise floor in a louder frame, in dB: about 1 dB per second."""
ABOVE_DB = 12.0
"""Level above the noise floor at which the probability is one half."""
LEAST_DB = -40.0
"""Lowest level at which the probability is one half, whatever the noise floor is."""
SLOPE_DB = 2.0
"""Width of the transition between silence and speech."""


class SpeechDetector(Protocol):
    """Finds speech in one stream of audio."""

    def probability(self, frame: Samples) -> float:
        """Probability that a frame is speech, 0 to 1.

        Args:
            frame: float32 [FRAME] at `RATE`, within -1 and 1; the next frame of the stream.
        """
        ...


class EnergyDetector:
    """Takes for speech what is clearly louder than the noise floor. Implements `SpeechDetector` without a model."""

    def __init__(self) -> None:
        self._floor = QUIETEST_DB

    def probability(self, frame: Samples) -> float:
        """Implements `SpeechDetector.probability`."""
        level = 10 * math.log10(float(np.mean(np.square(frame, dtype=np.float64))) + 1e-10)
        if level < self._floor:
            self._floor = max(level, QUIETEST_DB)
        else:
            self._floor = min(self._floor + RISE_DB, LOUDEST_FLOOR_DB)
        return 1 / (1 + math.exp(-(level - max(self._floor + ABOVE_DB, LEAST_DB)) / SLOPE_DB))
