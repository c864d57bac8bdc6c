"""Spans of speech into windows that a model can hear at once: packed up to its length, cut where it is quiet.

Windows never overlap and together cover every span, so that no word is heard twice or not at all. Does not know
models or what was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera_speech.recordings.voice_activity import FRAME, RATE

LONGEST_GAP_S = 2.0
"""Spans further apart are not put into one window: in long silence a model that writes text invents some."""
QUIET_FRAMES = 7
"""Speech that is longer than a window is cut in the middle of its quietest 7 frames (224 ms): between words, not in
the closure of a stop."""
CUT_FROM = 0.6
"""Such a cut is in the last 40 % of a window."""


def pack(
    spans: Sequence[tuple[int, int]], samples: np.ndarray[Any, Any], *, rate: int = RATE, window_s: float
) -> list[tuple[int, int]]:
    """Windows of at most `window_s` seconds.

    Args:
        spans: of speech, first sample and the one behind the last, in order.
        samples: float32 of shape [samples], the recording.
        rate: samples a second.
        window_s: what the model hears at once.

    Returns:
        First sample and the one behind the last of each window, in order.
    """
    longest, gap = int(window_s * rate), int(LONGEST_GAP_S * rate)
    windows: list[tuple[int, int]] = []
    for span_first, span_end in spans:
        if windows and span_first - windows[-1][1] <= gap and span_end - windows[-1][0] <= longest:
            windows[-1] = (windows[-1][0], span_end)
            continue
        first = span_first
        while span_end - first > longest:
            cut = quietest(samples, first + int(CUT_FROM * longest), first + longest)
            windows.append((first, cut))
            first = cut
        windows.append((first, span_end))
    return windows


def quietest(samples: np.ndarray[Any, Any], first: int, end: int) -> int:
    """The middle of the quietest `QUIET_FRAMES` frames of `samples[first:end]`, or `end` where that is too short."""
    frames = (end - first) // FRAME
    if frames < QUIET_FRAMES:
        return end
    part = samples[first : first + frames * FRAME].astype(np.float64).reshape(frames, FRAME)
    energy = np.convolve((part**2).mean(1), np.ones(QUIET_FRAMES), "valid")
    return int(first + (energy.argmin() + QUIET_FRAMES / 2) * FRAME)
