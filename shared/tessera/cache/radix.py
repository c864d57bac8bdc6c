"""The radix tree of the prefix cache: every edge is one page of tokens, found whole or by a common beginning.

Knows nothing about reference counts or eviction: see `tessera.cache.prefix`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MAX_SCANNED_EDGES = 64
"""Edges with the same first token that are compared for a partial hit; comparing more costs more than a hit saves."""


@dataclass(eq=False)
class RadixNode:
    """One edge of the tree and the page behind it. A root has no parent, no key and no page."""

    parent: RadixNode | None
    key: tuple[int, ...]
    """Token ids of the edge: one page of them, or fewer in a leaf."""
    page: int | None = None
    """Device page, or None while the content is in the host tier."""
    host_slot: int | None = None
    """Slot of the host tier, or None while the content is on the device."""
    last_used: int = 0
    """Time of the last use, in ticks of the cache's clock."""
    pin_count: int = 0
    """Number of pins; a pinned node is never evicted."""
    children: dict[tuple[int, ...], RadixNode] = field(default_factory=dict)
    children_by_first: dict[int, list[RadixNode]] = field(default_factory=dict)
    """Children grouped by the first token of their edge."""
    resident_children: int = 0
    """Number of children whose page is on the device."""
    is_removed: bool = False

    def add_child(self, key: tuple[int, ...]) -> RadixNode:
        """Add an edge below this node and return the new node."""
        child = RadixNode(self, key)
        self.children[key] = child
        self.children_by_first.setdefault(key[0], []).append(child)
        return child

    def lengthen(self, key: tuple[int, ...]) -> None:
        """Replace the edge by a longer one that begins with it."""
        assert self.parent is not None
        assert self.key == key[: len(self.key)]
        del self.parent.children[self.key]
        self.key = key
        self.parent.children[key] = self

    def detach(self) -> None:
        """Take this node out of the tree."""
        assert self.parent is not None
        self.is_removed = True
        del self.parent.children[self.key]
        siblings = self.parent.children_by_first[self.key[0]]
        siblings.remove(self)
        if not siblings:
            del self.parent.children_by_first[self.key[0]]

    def best_partial(self, tokens: tuple[int, ...]) -> tuple[RadixNode | None, int]:
        """Find the child on the device that shares the longest beginning with `tokens`.

        Returns:
            The child, or None if no child shares a token, and the number of shared tokens.
        """
        best, longest = None, 0
        for child in self.children_by_first.get(tokens[0], [])[-MAX_SCANNED_EDGES:]:
            count = _common_prefix_length(child.key, tokens)
            if count > longest and child.page is not None:
                best, longest = child, count
        return best, longest


@dataclass(frozen=True)
class PrefixMatch:
    """The longest known prefix: whole pages, and perhaps the beginning of one more.

    Attributes:
        nodes: Nodes of the whole pages, from the root on.
        partial: Node whose first `partial_count` tokens also match, or None. Its page has to be copied.
        partial_count: Number of tokens that match in `partial`.
    """

    nodes: list[RadixNode]
    partial: RadixNode | None
    partial_count: int

    def without_partial(self) -> PrefixMatch:
        """Return the whole pages alone: the source of a copy takes room until it is copied."""
        return PrefixMatch(self.nodes, None, 0)

    @property
    def offloaded_pages(self) -> int:
        """Number of whole pages that are in the host tier and need a page on the device."""
        return sum(node.page is None for node in self.nodes)


@dataclass(eq=False)
class TreeCursor:
    """A request's position in the tree: its first `depth` pages are in it, and `node` is the last of them."""

    node: RadixNode
    depth: int


def longest_prefix(root: RadixNode, ids: Sequence[int], page_size: int) -> PrefixMatch:
    """Find the longest beginning of `ids` that the tree below `root` holds."""
    node, nodes, at = root, list[RadixNode](), 0
    while at + page_size <= len(ids):
        child = node.children.get(tuple(ids[at : at + page_size]))
        if child is None:
            break
        nodes.append(child)
        node = child
        at += page_size
    rest = tuple(ids[at : at + page_size])
    return PrefixMatch(nodes, *(node.best_partial(rest) if rest else (None, 0)))


def check_trees(roots: Iterable[RadixNode], node_of: Mapping[int, RadixNode], page_size: int) -> list[RadixNode]:
    """Check the structure of all trees and return every node below `roots`.

    Args:
        roots: Roots of the trees.
        node_of: Node by device page.
        page_size: Tokens of a whole edge.

    Raises:
        AssertionError: A tree is malformed or a page is not where it should be. This is a bug of the cache.
    """
    nodes: list[RadixNode] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        assert node.resident_children == sum(child.page is not None for child in node.children.values())
        for key, child in node.children.items():
            assert child.key == key
            assert child.parent is node
            assert child in node.children_by_first[key[0]]
            assert len(key) == page_size or not child.children, "an edge below a partial page"
            assert child.page is None or node.parent is None or node.page is not None, (
                "a page on the device below one that is not"
            )
            assert (child.page is None) != (child.host_slot is None), "an edge on both tiers or on none"
        nodes += node.children.values()
        stack += node.children.values()
    resident = {node.page: node for node in nodes if node.page is not None}
    assert resident == node_of, f"{len(node_of)} pages known, {len(resident)} in the tree"
    return nodes


def _common_prefix_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
