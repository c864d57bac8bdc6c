"""The prefix cache: a radix tree from token ids to KV pages, on the device and in a host tier behind it.

Every edge is one page of tokens; an edge may be shorter than a page, and then it is a leaf whose page is copied by
those who go on from it (copy on write). Each tenant's salt has a tree of its own, so nobody can probe another's
prompts. Pages that only the tree holds are free for whoever needs them, the least recently used first; with a host tier
their content moves there and comes back on a hit.

A request that holds a page holds all pages above it, so what is idle can always be reclaimed from the leaves up.
Does not move bytes: it says in `transfers` what has to move before the next step, in order. Does not know requests.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.cache.pages import PageAllocator
from tessera.cache.radix import Node


@dataclass(frozen=True)
class Copy:
    """Page `source` → page `target`, both on the device."""

    source: int
    target: int


@dataclass(frozen=True)
class Offload:
    """Device page → host slot."""

    page: int
    slot: int


@dataclass(frozen=True)
class Fetch:
    """Host slot → device page."""

    slot: int
    page: int


Transfer = Copy | Offload | Fetch


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


class PrefixCache:
    """See the module.

    Args:
        allocator: of the device's pages. All references to pages are taken and dropped through this cache.
        host_slots: pages that the host tier holds; 0 is no tier.
        enabled: False finds nothing and keeps nothing.
    """

    def __init__(self, allocator: PageAllocator, *, host_slots: int = 0, enabled: bool = True) -> None:
        self.allocator = allocator
        self.host_slots = host_slots
        self.enabled = enabled
        self.transfers: list[Transfer] = []
        self.idle = 0
        """Pages that only the tree holds and nobody pinned: free for who needs them."""
        self.hit_tokens = {"device": 0, "host": 0}
        self.asked_tokens = 0
        self.evicted_pages = 0
        self._roots: dict[str, Node] = {}
        self._node_of: dict[int, Node] = {}
        self._free_slots = list(range(host_slots - 1, -1, -1))
        self._clock = itertools.count(1)
        self._evictable: list[tuple[int, int, Node]] = []
        self._evictable_slots: list[tuple[int, int, Node]] = []
        self._order = itertools.count()

    @property
    def available(self) -> int:
        """Pages that `allocate` can give."""
        return self.allocator.free + self.idle

    @property
    def cached_pages(self) -> int:
        """Device pages that the tree knows."""
        return len(self._node_of)

    @property
    def host_pages(self) -> int:
        """Slots of the host tier that are in use."""
        return self.host_slots - len(self._free_slots)

    def root(self, salt: str = "") -> Cursor:
        """Where a request begins that has nothing in the tree."""
        return Cursor(self._roots.setdefault(salt, Node(None, ())), 0)

    def match(self, ids: Sequence[int], salt: str, limit: int) -> Match:
        """The longest prefix of `ids[:limit]` that the tree has. No side effect.

        Args:
            ids: of the request; what stands for an image must be its own.
            salt: of the tenant.
            limit: the last position that may come from the cache, exclusive.
        """
        node = self._roots.get(salt)
        nodes: list[Node] = []
        if node is None or not self.enabled:
            return Match(nodes, None, 0)
        size = self.allocator.page_size
        at = 0
        while at + size <= limit:
            child = node.children.get(tuple(ids[at : at + size]))
            if child is None:
                break
            nodes.append(child)
            node = child
            at += size
        if at >= limit:
            return Match(nodes, None, 0)
        return Match(nodes, *node.closest(tuple(ids[at : min(at + size, limit)])))

    def idle_pages(self, match: Match) -> int:
        """Device pages of the match that are idle now and no longer would be."""
        nodes = [*match.nodes, match.partial] if match.partial is not None else match.nodes
        return sum(self._is_idle(node) for node in nodes)

    def acquire(self, match: Match, salt: str, asked: int) -> tuple[list[int], Cursor]:
        """Take a reference to every page of a match. Ask first: what is `absent` must be available beside `idle_pages`.

        Args:
            match: of a moment ago.
            salt: that it was made with.
            asked: positions that might have been found, for the share of hits.

        Returns:
            The pages in order, the copy of a partial one last; and the cursor behind the whole ones.
        """
        self.asked_tokens += asked
        now = next(self._clock)
        held = [node for node in match.nodes if node.page is not None]
        absent = [node for node in match.nodes if node.page is None]
        for node in held:
            self._hold(node)
        if match.partial is not None:
            self._hold(match.partial)  # until it is copied
        for node in match.nodes:
            node.used = now
        for node in absent:
            node.pins += 1  # until it is fetched: making room for it must not drop it
        size = self.allocator.page_size
        self.hit_tokens["device"] += len(held) * size + match.partial_count
        self.hit_tokens["host"] += len(absent) * size
        for node in absent:
            (page,) = self.allocate(1)
            assert node.slot is not None
            self.transfers.append(Fetch(node.slot, page))
            self._free_slots.append(node.slot)
            node.slot = None
            node.pins -= 1
            self._settle(node, page)
        pages = [node.page for node in match.nodes if node.page is not None]
        cursor = Cursor(match.nodes[-1], len(match.nodes)) if match.nodes else self.root(salt)
        if match.partial is not None:
            assert match.partial.page is not None
            match.partial.used = now
            (copy,) = self.allocate(1)
            self.transfers.append(Copy(match.partial.page, copy))
            self.release([match.partial.page])
            pages.append(copy)
        return pages, cursor

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, from the tree when none are free. Ask `available` first."""
        while self.allocator.free < count:
            self._reclaim_page()
        return self.allocator.allocate(count)

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each of `pages`. Those that the tree knows stay there, idle."""
        for page in pages:
            self.allocator.release([page])
            node = self._node_of.get(page)
            if node is not None and self.allocator.references(page) == 1 and node.pins == 0:
                self.idle += 1
                self._offer(node)

    def extend(self, cursor: Cursor, ids: Sequence[int], pages: list[int], computed: int, *, ends: bool) -> None:
        """Put a request's computed pages into the tree.

        Where another request computed the same page before, its page takes the place of this one in `pages`: so who
        holds a page always holds those above it.

        Args:
            cursor: of the request; moved on.
            ids: of the request.
            pages: of the request; changed in place.
            computed: positions whose keys and values are there.
            ends: also put a last page that is not full; done at the end of a prompt and of an answer.
        """
        if not self.enabled or cursor.node.removed:
            return
        size = self.allocator.page_size
        now = next(self._clock)
        while (cursor.depth + 1) * size <= computed:
            at = cursor.depth * size
            cursor.node = self._put(cursor.node, tuple(ids[at : at + size]), pages, cursor.depth)
            cursor.node.used = now
            cursor.depth += 1
        at = cursor.depth * size
        if ends and at < computed:
            self._put_partial(cursor.node, tuple(ids[at:computed]), pages[cursor.depth], now)

    def forget(self, cursor: Cursor, depth: int) -> None:
        """Take a request's pages from `depth` on out of the tree, with what others put below them: they are spoiled."""
        node = cursor.node
        if node.removed:
            return
        if cursor.depth == depth:  # its only part of the tree is a page that is not full
            for child in [child for child in node.children.values() if len(child.key) < self.allocator.page_size]:
                self._remove(child)
            return
        for _ in range(cursor.depth - depth - 1):
            assert node.parent is not None
            node = node.parent
        self._remove(node)

    def pin(self, nodes: Iterable[Node]) -> None:
        """Keep pages although nobody uses them, until `unpin`. Pin a whole path from its root on."""
        for node in nodes:
            if self._is_idle(node):
                self.idle -= 1
            node.pins += 1

    def unpin(self, nodes: Iterable[Node]) -> None:
        """Undo a `pin`."""
        for node in nodes:
            assert node.pins > 0
            node.pins -= 1
            if self._is_idle(node):
                self.idle += 1
                self._offer(node)

    def take_transfers(self) -> list[Transfer]:
        """What has to move before the next step, in order; forgotten here."""
        taken, self.transfers = self.transfers, []
        return taken

    def prune(self) -> None:
        """Forget salts that nothing is kept of. Only while no request is there: its cursor may be at such a root."""
        self._roots = {salt: root for salt, root in self._roots.items() if root.children}

    def clear(self, held: Iterable[Sequence[int]]) -> None:
        """Forget everything but what requests hold: after a violated invariant, or when the model changed.

        Args:
            held: the pages of every request.
        """
        self._roots.clear()
        self._node_of.clear()
        self._evictable.clear()
        self._evictable_slots.clear()
        self._free_slots = list(range(self.host_slots - 1, -1, -1))
        self.transfers.clear()
        self.idle = 0
        self.allocator.reset(held)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Pages, tree and counters agree.

        Args:
            held: the pages of every request.

        Raises:
            AssertionError: a fault of ours, with what disagrees.
        """
        self.allocator.check_integrity()
        expected = [0] * self.allocator.pages
        for pages in held:
            for page in pages:
                expected[page] += 1
        slots: list[int] = []
        idle = 0
        stack = list(self._roots.values())
        seen = 0
        while stack:
            node = stack.pop()
            stack += node.children.values()
            assert node.resident == sum(child.page is not None for child in node.children.values())
            for key, child in node.children.items():
                assert child.key == key
                assert child.parent is node
                assert child in node.by_first[key[0]]
                assert len(key) == self.allocator.page_size or not child.children, "an edge below half a page"
                assert child.page is None or node.parent is None or node.page is not None, "a page below none"
                assert (child.page is None) != (child.slot is None), "an edge on both tiers or on none"
                seen += child.page is not None
                if child.page is None:
                    assert child.slot is not None
                    slots.append(child.slot)
                else:
                    assert self._node_of[child.page] is child
                    expected[child.page] += 1
                    idle += expected[child.page] == 1 and child.pins == 0
        assert seen == len(self._node_of), f"{len(self._node_of)} pages known, {seen} in the tree"
        wrong = [page for page, count in enumerate(expected) if count != self.allocator.references(page)]
        assert not wrong, f"pages with wrong counts of references: {wrong}"
        assert idle == self.idle, f"{self.idle} pages counted as idle, {idle} are"
        assert sorted([*slots, *self._free_slots]) == list(range(self.host_slots)), "slots of the host tier are lost"

    def _put(self, parent: Node, key: tuple[int, ...], pages: list[int], depth: int) -> Node:
        page = pages[depth]
        child = parent.children.get(key)
        own = self._node_of.get(page)
        if child is None and own is not None:  # it was there as a part of a page, and is full now
            own.rename(key)
            return own
        if child is None:
            child = parent.add(key)
        if child.page is None:
            if child.slot is not None:
                self._free_slots.append(child.slot)
                child.slot = None
            if own is not None:
                self._remove(own)
            self._settle(child, page)
        elif child.page != page:
            self._hold(child)
            pages[depth] = child.page
            if own is not None:
                self._remove(own)
            self.release([page])
        return child

    def _put_partial(self, parent: Node, key: tuple[int, ...], page: int, now: int) -> None:
        own = self._node_of.get(page)
        known = parent.children.get(key)
        if own is not None:
            if known is None:
                own.rename(key)
            own.used = now
        elif known is None:
            child = parent.add(key)
            child.used = now
            self._settle(child, page)

    def _settle(self, node: Node, page: int) -> None:
        """Add a reference of the tree's own to a page that somebody holds."""
        assert node.parent is not None
        self.allocator.share([page])
        node.page = page
        node.parent.resident += 1
        self._node_of[page] = node

    def _is_idle(self, node: Node) -> bool:
        return node.page is not None and node.pins == 0 and self.allocator.references(node.page) == 1

    def _hold(self, node: Node) -> None:
        assert node.page is not None
        if self._is_idle(node):
            self.idle -= 1
        self.allocator.share([node.page])

    def _offer(self, node: Node) -> None:
        if node.resident == 0:
            heapq.heappush(self._evictable, (node.used, next(self._order), node))

    def _reclaim_page(self) -> None:
        """Free the page of the least recently used idle leaf, keeping its content in the host tier if there is one."""
        while True:
            used, _, node = heapq.heappop(self._evictable)
            if self._is_idle(node) and node.resident == 0 and node.used == used:
                break
        page = node.page
        assert page is not None
        slot = self._slot() if len(node.key) == self.allocator.page_size else None
        if slot is None:
            self._remove(node)
        else:
            self.transfers.append(Offload(page, slot))
            self._unsettle(node)
            node.slot = slot
            self._offer_slot(node)
        self.evicted_pages += 1

    def _slot(self) -> int | None:
        """A slot of the host tier, the least recently used one when none is free."""
        while not self._free_slots and self._evictable_slots:
            used, _, node = heapq.heappop(self._evictable_slots)
            if node.slot is not None and not node.children and node.pins == 0 and node.used == used:
                self._remove(node)
        return self._free_slots.pop() if self._free_slots else None

    def _offer_slot(self, node: Node) -> None:
        if node.slot is not None and not node.children:
            heapq.heappush(self._evictable_slots, (node.used, next(self._order), node))

    def _unsettle(self, node: Node) -> None:
        """Take an idle page from its node and free it."""
        assert node.parent is not None
        assert node.page is not None
        self.idle -= 1
        del self._node_of[node.page]
        self.allocator.release([node.page])
        node.page = None
        parent = node.parent
        parent.resident -= 1
        if parent.resident == 0 and self._is_idle(parent):
            self._offer(parent)

    def _remove(self, node: Node) -> None:
        """Take a node with all below it out of the tree."""
        for child in list(node.children.values()):
            self._remove(child)
        assert node.parent is not None
        parent = node.parent
        if node.page is not None:
            if self.allocator.references(node.page) > 1:  # the tree's reference alone goes
                del self._node_of[node.page]
                self.allocator.release([node.page])
                parent.resident -= 1
                node.page = None
            else:
                self._unsettle(node)
        if node.slot is not None:
            self._free_slots.append(node.slot)
            node.slot = None
        node.detach()
        self._offer_slot(parent)
