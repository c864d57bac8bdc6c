"""The order in which nodes of the radix tree are evicted from a tier: least recently used first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from tessera.cache.radix import RadixNode


class EvictionQueue:
    """Candidates for eviction from one tier.

    A node may be offered several times. Entries of nodes that were used again since they were offered are stale: they
    stay in the heap and are dropped when they are popped.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._order = itertools.count()

    def offer(self, node: RadixNode) -> None:
        """Make a node a candidate, at the place of its last use."""
        heapq.heappush(self._heap, (node.last_used, next(self._order), node))

    def pop(self, is_evictable: Callable[[RadixNode], bool]) -> RadixNode | None:
        """Remove and return the least recently used candidate for which `is_evictable` holds; None if there is none."""
        while self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            if node.last_used == last_used and is_evictable(node):
                return node
        return None

    def clear(self) -> None:
        """Drop all candidates."""
        self._heap.clear()
