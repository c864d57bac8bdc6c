"""The windows in which a vocoder decodes a sentence, so that the first audio comes early and no sample changes.

On each side where the sentence goes on, a window has as many frames of context as the vocoder's convolutions reach; the
samples of the context are dropped. The first window of a text is short and each next one is twice as long, but no
longer than the audio before it: playback never waits, and little is computed twice. Lengths come from a fixed series,
so that windows of several sentences fit one batch. Knows nothing about weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_WINDOW_S = 0.25
"""Seconds of audio of the first window of a text."""
MAX_WINDOW_S = 4.0
"""Most seconds of audio of a window; it takes some megabytes of memory per second."""


class VocoderProgress:
    """The progress of a vocoder in one sentence.

    Args:
        frames: frames of the sentence.
        reach: frames to each side that one frame of output depends on; None if the vocoder cannot run in windows.
        frame_s: seconds of audio of a frame.
        ahead_s: seconds of audio of the same text before this sentence.
    """

    def __init__(self, frames: int, *, reach: int | None, frame_s: float, ahead_s: float = 0.0) -> None:
        self.frames = frames
        self.done = 0
        self._reach = frames if reach is None else reach
        self._next = max(1, math.ceil(FIRST_WINDOW_S / frame_s))
        self._most = max(self._next, math.ceil(MAX_WINDOW_S / frame_s))
        while 2 * self._next * frame_s <= ahead_s and self._next < self._most:
            self._next = min(2 * self._next, self._most)

    @property
    def finished(self) -> bool:
        """Whether all frames are decoded."""
        return self.done >= self.frames

    @property
    def window(self) -> slice:
        """Frames to decode next, with their context."""
        length = min(self.frames, self._next + 2 * self._reach)
        end = min(self.frames, max(0, self.done - self._reach) + length)
        return slice(end - length, end)

    def advance(self) -> slice:
        """Count the window as decoded.

        Returns:
            The frames of the window that are new and equal to those of the whole sentence.
        """
        window = self.window
        until = self.frames if window.stop == self.frames else window.stop - self._reach
        fresh = slice(self.done - window.start, until - window.start)
        self.done = until
        self._next = min(2 * self._next, self._most)
        return fresh


def hifigan_reach(
    rates: Sequence[int],
    kernels: Sequence[int],
    resblock_kernels: Sequence[int],
    resblock_dilations: Sequence[Sequence[int]],
) -> int | None:
    """Frames to each side that a sample of HiFi-GAN depends on; None if its windows would not join without a seam.

    Source: the generator in `VitsHifiGan`: convolutions of width 7 before and after the stages; in each stage, a
    transposed convolution and parallel chains of pairs of convolutions, the first of each pair dilated.
    """
    reach = 3
    chain = max(
        sum((kernel // 2) * dilation + kernel // 2 for dilation in dilations)
        for kernel, dilations in zip(resblock_kernels, resblock_dilations, strict=True)
    )
    for rate, kernel in zip(reversed(rates), reversed(kernels), strict=True):
        padding = (kernel - rate) // 2
        if kernel < rate or (kernel - rate) % 2:
            return None
        reach = (reach + chain + max(padding, kernel - 1 - padding)) // rate + 1
    return reach + 3
