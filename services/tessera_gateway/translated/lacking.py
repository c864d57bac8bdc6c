"""Which upstreams lack which route: learned from their answers, and forgotten after a while, because servers are
updated. Knows no route and sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

RELEARN_S = 600.0
"""Seconds after which an upstream is asked for a route again that it lacked."""
LACKING = frozenset({404, 405, 501})
"""Statuses of a server that has no such route."""


class LackingRoutes:
    """Routes that upstreams lack, by name and path. It has one entry for each at most.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[str, str], float] = {}

    def lacks(self, upstream: str, path: str) -> bool:
        """Whether an upstream lacked a route when it was asked last, not too long ago."""
        return self._clock() < self._until.get((upstream, path), 0.0)

    def learn(self, upstream: str, path: str) -> None:
        """Remember that an upstream lacks a route."""
        self._until[upstream, path] = self._clock() + RELEARN_S
