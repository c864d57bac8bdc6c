"""How long a queue keeps who comes to it now, from how fast it has moved: the wait that a refused client is told.

A queue is looked at when something comes to it or is refused. What came and is not there any more has left, so nobody
has to say so. Lengths are counted in any unit: requests, tokens that may still be made, seconds of sound. Knows no
queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 120.0
"""Seconds that the past reaches back."""
EVERY_S = 0.05
"""Fewest seconds between two looks that are remembered."""
LEAST_S, MOST_S = 1.0, 600.0
"""Bounds of every answer."""


class WaitMeter:
    """The pace of one queue.

    Args:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._came = 0.0
        self._pace_s = 0.0
        """Seconds in which one unit left the queue, when it was last measured."""
        self._looks: deque[tuple[float, float]] = deque()
        """Times, and how much had left the queue until then."""

    def came(self, amount: float, length: float) -> None:
        """Note that `amount` came to the queue, which has the given length with it."""
        self._came += amount
        self._look(length)
        if length <= amount:  # it came to an empty queue: the time before tells nothing
            self._looks = deque([self._looks[-1]])

    def wait(self, length: float, ahead: float | None = None) -> float:
        """Seconds until somebody who came now would be served: at least 1, at most 600.

        While nothing has left the queue since it was empty, it is the pace before that, or at least the time that the
        queue has stood still.

        Args:
            length: the queue's length.
            ahead: how much of it has to leave before; all of it by default.
        """
        self._look(length)
        ahead = length if ahead is None else ahead
        (first, left_first), (last, left_last) = self._looks[0], self._looks[-1]
        left, seconds = left_last - left_first, last - first
        if left > 0:
            self._pace_s = seconds / left
            return min(MOST_S, max(LEAST_S, ahead * self._pace_s))
        return min(MOST_S, max(LEAST_S, seconds, ahead * self._pace_s))

    def _look(self, length: float) -> None:
        now = self._clock()
        look = (now, self._came - length)
        if len(self._looks) > 1 and now - self._looks[-2][0] < EVERY_S:
            self._looks[-1] = look
        else:
            self._looks.append(look)
        while now - self._looks[0][0] > WINDOW_S and len(self._looks) > 2:
            self._looks.popleft()
