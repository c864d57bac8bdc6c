"""Packs spans of speech into windows that a model transcribes at once, and cuts longer ones where they are quiet.

Windows never overlap and together cover every span, so that no word is transcribed twice or left out. Knows nothing
about models or words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera_speech.recordings.voice_activity import FRAME, RATE

LONGEST_GAP_S = 2.0
"""Most seconds between two spans of one window: in a long silence a model that writes text invents some."""
QUIET_FRAMES = 7
"""Speech that is longer than a window is cut in the middle of its quietest 7 frames (224 ms): between words, not in
the closure of a stop."""
EARLIEST_CUT = 0.6
"""Earliest place of such a cut, as a part of the window."""


def pack(
    spans: Sequence[tuple[int, int]], samples: np.ndarray[Any, Any], *, rate: int = RATE, window_s: float
) -> list[tuple[int, int]]:
    """Windows of at most `window_s` seconds.

    Args:
        spans: (first sample, the one after the last) of each span of speech, in order.
        samples: the recording, float32 [samples].
        rate: samples per second.
        window_s: longest window of the model, in seconds.

    Returns:
        (First sample, the one after the last) of each window, in order.
    """
    longest, gap = int(window_s * rate), int(LONGEST_GAP_S * rate)
    windows: list[tuple[int, int]] = []
    for span_first, span_end in spans:
        if windows and span_first - windows[-1][1] <= gap and span_end - windows[-1][0] <= longest:
            windows[-1] = (windows[-1][0], span_end)
            continue
        first = span_first
        while span_end - first > longest:
            cut = quietest(samples, first + int(EARLIEST_CUT * longest), first + longest)
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
