"""In which windows a vocoder goes through a sentence, so that the first sound comes early and nothing sounds different.

A window has, on each side where the sentence goes on, as many frames of context as the vocoder's convolutions can see;
what is made of the context is dropped. The first window of a text is short, each next one makes twice as much, no more
than was made before: so nobody waits, and what is computed twice stays a small part. Lengths are of a fixed series, so
that windows of several sentences fit one batch. Does not know models' weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_S = 0.25
"""What the first window of a text makes."""
LONGEST_S = 4.0
"""What a window makes at most; its memory is some megabytes a second."""


class VocoderProgress:
    """How far a sentence is decoded.

    Args:
        frames: of the sentence.
        reach: frames to each side that one frame of output depends on; None: the vocoder cannot be cut.
        frame_s: seconds of a frame.
        ahead_s: that the text has sounded for before this sentence.
    """

    def __init__(self, frames: int, *, reach: int | None, frame_s: float, ahead_s: float = 0.0) -> None:
        self.frames = frames
        self.done = 0
        self._reach = frames if reach is None else reach
        self._next = max(1, math.ceil(FIRST_S / frame_s))
        self._most = max(self._next, math.ceil(LONGEST_S / frame_s))
        while 2 * self._next * frame_s <= ahead_s and self._next < self._most:
            self._next = min(2 * self._next, self._most)

    @property
    def finished(self) -> bool:
        """Whether all frames are decoded."""
        return self.done >= self.frames

    @property
    def window(self) -> slice:
        """Frames to decode next."""
        length = min(self.frames, self._next + 2 * self._reach)
        end = min(self.frames, max(0, self.done - self._reach) + length)
        return slice(end - length, end)

    def advance(self) -> slice:
        """Count the window as decoded.

        Returns:
            Which of its frames are new and as they are in the whole.
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
    """Frames to each side that a sample of HiFi-GAN depends on; None where windows of it would not fit together.

    Source: its generator as `VitsHifiGan` has it: convolutions of width 7 before and after the stages; in each, a
    transposed convolution and parallel chains of pairs of convolutions, the first of a pair dilated.
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
