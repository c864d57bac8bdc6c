"""Chooses the batch size of each shape from measured step times.

One large clip fills a device, so a second one beside it delays both; many small clips cost hardly more than one. The
best batch size is the one whose steps took least time per request. Knows no models and reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

OLD_TIME_SHARE = 0.8
"""Weight (0 to 1) of the old step time in the moving average, so that a step that was slow by chance is forgotten."""
RETRY_STEPS = 24
"""Steps of a shape after which a batch size that was too slow is tried again: the machine may have been busy."""
MAX_SLOWDOWN = 1.05
"""Larger batch sizes are tried while the time per request is at most this times the best one of smaller sizes."""


class BatchCosts:
    """Measured step times in seconds, by shape and batch size."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Hashable, int], float] = {}
        self._steps: Counter[Hashable] = Counter()

    def record(self, shape: Hashable, batch_size: int, seconds: float) -> None:
        """Record the seconds that a step of `batch_size` requests took; infinity for one that ran out of memory."""
        known = self._seconds.get((shape, batch_size))
        # The first step of a shape includes warm-up, so a faster time replaces it at once.
        if known is None or seconds < known:
            self._seconds[shape, batch_size] = seconds
        else:
            self._seconds[shape, batch_size] = OLD_TIME_SHARE * known + (1 - OLD_TIME_SHARE) * seconds

    def best(self, shape: Hashable, most: int) -> int:
        """Return the batch size, 1 to `most`. Sizes without a measurement are tried first, smaller ones earlier."""
        assert most >= 1
        self._steps[shape] += 1
        best, best_seconds = 1, float("inf")
        for batch_size in sizes(most):
            seconds = self._seconds.get((shape, batch_size))
            if seconds is None:
                return batch_size
            per_request = seconds / batch_size
            if per_request > MAX_SLOWDOWN * best_seconds:
                retry = seconds < float("inf") and self._steps[shape] % RETRY_STEPS == 0
                return batch_size if retry else best
            if per_request < best_seconds:
                best, best_seconds = batch_size, per_request
        return best


def sizes(most: int) -> list[int]:
    """Return the batch sizes that are tried: 1, 2, 4, … and `most` itself."""
    found = [1]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return found if most == 1 else [*found, most]
