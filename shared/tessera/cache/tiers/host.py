"""The host tier: slots for pages that had to leave the device, the least recently used given up first.

Does not know where the memory is: a slot is a number.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from tessera.cache.radix import Node


class HostTier:
    """The slots of a tier behind the device's."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._order = itertools.count()
        self.reset()

    @property
    def used(self) -> int:
        """Slots that hold a page."""
        return self.slots - len(self.free)

    def reset(self) -> None:
        """Forget everything."""
        self.free = list(range(self.slots - 1, -1, -1))
        self._evictable: list[tuple[int, int, Node]] = []

    def take(self, remove: Callable[[Node], None]) -> int | None:
        """A slot; when none is free, that of the leaf used least recently, which `remove` takes out of the tree."""
        while not self.free and self._evictable:
            used, _, node = heapq.heappop(self._evictable)
            if _is_leaf(node) and node.pins == 0 and node.used == used:
                remove(node)
        return self.free.pop() if self.free else None

    def give_up(self, node: Node) -> None:
        """Free a node's slot, if it has one."""
        if node.slot is not None:
            self.free.append(node.slot)
            node.slot = None

    def offer(self, node: Node) -> None:
        """A node may be given up now: it came here, or its last child went."""
        if _is_leaf(node):
            heapq.heappush(self._evictable, (node.used, next(self._order), node))


def _is_leaf(node: Node) -> bool:
    return node.slot is not None and not node.children
