"""The host tier: slots for pages that were evicted from the device; its own least recently used leaves go first.

Knows nothing about memory: a slot is an index, and the runner owns the tensors behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tessera.cache.eviction import EvictionQueue
from tessera.cache.radix import RadixNode


class HostTier:
    """Allocates host slots to radix nodes.

    Args:
        slots: pages that the tier can hold; 0 turns it off.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._evictable = EvictionQueue()
        self.reset()

    @property
    def used(self) -> int:
        """Number of slots that hold a page."""
        return self.slots - len(self.free_slots)

    def reset(self) -> None:
        """Free every slot; the nodes that held them must be gone."""
        self.free_slots = list(range(self.slots - 1, -1, -1))
        self._evictable.clear()

    def take_slot(self, remove: Callable[[RadixNode], None]) -> int | None:
        """Take a free slot, evicting the tier's least recently used leaf if there is none.

        Args:
            remove: takes the evicted leaf out of the tree and gives its slot back through `free_slot`.

        Returns:
            The slot, or None when every slot is held by a pinned node or by one that has children.
        """
        if not self.free_slots and (node := self._evictable.pop(_is_evictable)) is not None:
            remove(node)
        return self.free_slots.pop() if self.free_slots else None

    def free_slot(self, node: RadixNode) -> None:
        """Give a node's slot back, if the node has one."""
        if node.host_slot is not None:
            self.free_slots.append(node.host_slot)
            node.host_slot = None

    def offer(self, node: RadixNode) -> None:
        """Make a node a candidate for eviction. Call it when a node gets a slot or loses its last child."""
        if _is_host_leaf(node):
            self._evictable.offer(node)

    def check_integrity(self, nodes: Iterable[RadixNode]) -> None:
        """Check that every slot is free or held by exactly one of `nodes`.

        Raises:
            AssertionError: Slots are lost or held twice. This is a bug of the cache.
        """
        held = [node.host_slot for node in nodes if node.host_slot is not None]
        assert sorted([*held, *self.free_slots]) == list(range(self.slots)), "slots of the host tier are lost"


def _is_host_leaf(node: RadixNode) -> bool:
    return node.host_slot is not None and not node.children


def _is_evictable(node: RadixNode) -> bool:
    return _is_host_leaf(node) and node.pin_count == 0
