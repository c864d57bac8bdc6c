"""The radix tree that the prefix cache keeps: its edges are pages of tokens, looked up whole or by their beginnings.

Does not know who holds a page: see `tessera.cache.prefix`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCANNED = 64
"""Edges beginning with the same token that are compared for a partial hit; more would cost more than they save."""


@dataclass(eq=False)
class Node:
    """One edge of the tree and the page behind it. A root has no parent, no key and no page."""

    parent: Node | None
    key: tuple[int, ...]
    page: int | None = None
    """On the device; None when its content is in the host tier."""
    slot: int | None = None
    """In the host tier."""
    used: int = 0
    """When it was used last, by the cache's clock."""
    pins: int = 0
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    by_first: dict[int, list[Node]] = field(default_factory=dict)
    """Children by the first token of their edge."""
    resident: int = 0
    """Children whose page is on the device."""
    removed: bool = False

    def add(self, key: tuple[int, ...]) -> Node:
        """A new edge below this one."""
        child = Node(self, key)
        self.children[key] = child
        self.by_first.setdefault(key[0], []).append(child)
        return child

    def rename(self, key: tuple[int, ...]) -> None:
        """Make the edge longer."""
        assert self.parent is not None
        assert self.key == key[: len(self.key)]
        del self.parent.children[self.key]
        self.key = key
        self.parent.children[key] = self

    def detach(self) -> None:
        """Take the edge out of the tree."""
        assert self.parent is not None
        self.removed = True
        del self.parent.children[self.key]
        same = self.parent.by_first[self.key[0]]
        same.remove(self)
        if not same:
            del self.parent.by_first[self.key[0]]

    def closest(self, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """The edge on the device with the longest beginning in common with `tokens`, and how long that is."""
        best, longest = None, 0
        for child in self.by_first.get(tokens[0], [])[-SCANNED:]:
            count = _common(child.key, tokens)
            if count > longest and child.page is not None:
                best, longest = child, count
        return best, longest


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two edges have in common at their beginning."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
