"""How many requests of one shape are best stepped together: measured, not assumed.

A large clip fills a device by itself, and a second one beside it makes both late; many small ones cost hardly more than
one. The best size is the one whose steps took least time for each request. Does not know models or clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

KEEP = 0.8
"""Share of the old time in the new: a step that was slow by chance is forgotten."""
AGAIN = 24
"""Every so many steps a size that was too slow is tried again: perhaps the machine was busy then."""
WORTH = 1.05
"""A larger batch is tried further while it is not slower for each request than this times the best smaller one."""


class BatchCosts:
    """What steps took, by shape and number of requests."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Hashable, int], float] = {}
        self._asked: Counter[Hashable] = Counter()

    def record(self, shape: Hashable, together: int, seconds: float) -> None:
        """A step of `together` requests took so long."""
        known = self._seconds.get((shape, together))
        # The first step of a shape also warms up; so what is faster counts at once.
        if known is None or seconds < known:
            self._seconds[shape, together] = seconds
        else:
            self._seconds[shape, together] = KEEP * known + (1 - KEEP) * seconds

    def best(self, shape: Hashable, most: int) -> int:
        """How many of `most` requests to step together: what is not yet known is tried, smaller sizes first."""
        assert most >= 1
        self._asked[shape] += 1
        best, best_seconds = 1, float("inf")
        for together in sizes(most):
            seconds = self._seconds.get((shape, together))
            if seconds is None:
                return together
            each = seconds / together
            if each > WORTH * best_seconds:
                again = seconds < float("inf") and self._asked[shape] % AGAIN == 0
                return together if again else best
            if each < best_seconds:
                best, best_seconds = together, each
        return best


def sizes(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    found = [1]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return found if most == 1 else [*found, most]
