"""The radix tree that the prefix cache keeps: its edges are pages of tokens, looked up whole or by their beginnings.

Does not know who holds a page: see `tessera.cache.prefix`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class Match:
    """The longest known prefix: whole pages, and perhaps the first `partial_count` tokens of one more."""

    nodes: list[Node]
    partial: Node | None
    partial_count: int

    def without_copy(self) -> Match:
        """Its whole pages alone: the page to copy from takes room until it is copied."""
        return Match(self.nodes, None, 0)

    @property
    def absent(self) -> int:
        """Whole pages that are in the host tier and need one on the device."""
        return sum(node.page is None for node in self.nodes)


@dataclass(eq=False)
class Cursor:
    """Where in the tree a request stands: its pages up to `depth` are in it."""

    node: Node
    depth: int


def longest_prefix(root: Node, ids: Sequence[int], page_size: int) -> Match:
    """What a tree has of the beginning of `ids`."""
    node, nodes, at = root, list[Node](), 0
    while at + page_size <= len(ids):
        child = node.children.get(tuple(ids[at : at + page_size]))
        if child is None:
            break
        nodes.append(child)
        node = child
        at += page_size
    rest = tuple(ids[at : at + page_size])
    return Match(nodes, *(node.closest(rest) if rest else (None, 0)))


def check_trees(roots: Iterable[Node], node_of: Mapping[int, Node], page_size: int) -> list[Node]:
    """All nodes below `roots`.

    Args:
        roots: of trees.
        node_of: by page, the node that has it.
        page_size: tokens of an edge.

    Raises:
        AssertionError: a tree is none, or a page is not where it should be: a fault of ours.
    """
    found: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        assert node.resident == sum(child.page is not None for child in node.children.values())
        for key, child in node.children.items():
            assert child.key == key
            assert child.parent is node
            assert child in node.by_first[key[0]]
            assert len(key) == page_size or not child.children, "an edge below a part of a page"
            assert child.page is None or node.parent is None or node.page is not None, "a page below none"
            assert (child.page is None) != (child.slot is None), "an edge on both tiers or on none"
        found += node.children.values()
        stack += node.children.values()
    there = {node.page: node for node in found if node.page is not None}
    assert there == node_of, f"{len(node_of)} pages known, {len(there)} in the tree"
    return found


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two edges have in common at their beginning."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
