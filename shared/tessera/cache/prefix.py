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
from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.cache.pages import PageAllocator
from tessera.cache.radix import Cursor, Match, Node, check_trees, longest_prefix
from tessera.cache.tiers.host import HostTier
from tessera.cache.transfers import Copy, Fetch, Offload, Transfer


class PrefixCache:
    """See the module.

    Args:
        allocator: of the device's pages. All references to pages are taken and dropped through this cache.
        host_slots: pages that the host tier holds; 0 is no tier.
        enabled: False finds nothing and keeps nothing.
    """

    def __init__(self, allocator: PageAllocator, *, host_slots: int = 0, enabled: bool = True) -> None:
        self.allocator = allocator
        self.host = HostTier(host_slots)
        self.enabled = enabled
        self.transfers: list[Transfer] = []
        self.idle = self.pinned = 0
        """Pages that only the tree holds and nobody pinned, free for who needs them; and pages that somebody did."""
        self.hit_tokens = {"device": 0, "host": 0}
        self.queried_tokens = 0
        self.evicted_pages = 0
        self._roots: dict[str, Node] = {}
        self._node_of: dict[int, Node] = {}
        self._clock = itertools.count(1)
        self._evictable: list[tuple[int, int, Node]] = []
        self._order = itertools.count()

    @property
    def available(self) -> int:
        """Pages that `allocate` can give."""
        return self.allocator.free + self.idle

    @property
    def cached_pages(self) -> int:
        """Device pages that the tree knows."""
        return len(self._node_of)

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
        root = self._roots.get(salt)
        if root is None or not self.enabled:
            return Match([], None, 0)
        return longest_prefix(root, ids[:limit], self.allocator.page_size)

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
        self.queried_tokens += asked
        now = next(self._clock)
        held, absent = ([node for node in match.nodes if (node.page is None) == gone] for gone in (False, True))
        for node in held:
            self._hold(node)
        for node in match.nodes:
            node.used = now
        if match.partial is not None:
            self._hold(match.partial)  # until it is copied
        for node in absent:
            node.pins += 1  # until it is fetched: making room for it must not drop it
        self.hit_tokens["device"] += len(held) * self.allocator.page_size + match.partial_count
        self.hit_tokens["host"] += len(absent) * self.allocator.page_size
        for node in absent:
            (page,) = self.allocate(1)
            assert node.slot is not None
            self.transfers.append(Fetch(node.slot, page))
            self.host.give_up(node)
            node.pins -= 1
            self.pinned -= node.pins == 0
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

    def allocate(self, count: int, after: int | None = None, room: int = 0) -> list[int]:
        """Take pages as from the allocator, those of the tree when none are free. Ask `available` first.

        For a run and its room some idle pages more are given up: they are the next to go.
        """
        while self.allocator.free < count:
            self._reclaim_page()
        if room and (after is None or not self.allocator.can_extend(after, count)):
            self._make_run(count + room)
        return self.allocator.allocate(count, after, room)

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each of `pages`. Those that the tree knows stay there, idle."""
        for page in pages:
            self.allocator.release([page])
            node = self._node_of.get(page)
            if node is not None and self.allocator.reference_count(page) == 1 and node.pins == 0:
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
        if cursor.depth <= depth:  # its only part of the tree is a page that is not full
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
            self.pinned += node.pins == 0
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
        self.host.reset()
        self.transfers.clear()
        self.idle = self.pinned = 0
        self.allocator.reset(held)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Pages, tree and counters agree.

        Args:
            held: the pages of every request.

        Raises:
            AssertionError: a fault of ours, with what disagrees.
        """
        nodes = check_trees(self._roots.values(), self._node_of, self.allocator.page_size)
        self.allocator.check_integrity(Counter(itertools.chain(*held, self._node_of)))
        idle = sum(map(self._is_idle, nodes))
        assert idle == self.idle, f"{self.idle} pages counted as idle, {idle} are"
        slots = [node.slot for node in nodes if node.slot is not None]
        assert sorted([*slots, *self.host.free]) == list(range(self.host.slots)), "slots of the host tier are lost"

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
            self.host.give_up(child)
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
        self.allocator.retain([page])
        node.page = page
        node.parent.resident += 1
        self._node_of[page] = node

    def _is_idle(self, node: Node) -> bool:
        return node.page is not None and node.pins == 0 and self.allocator.reference_count(node.page) == 1

    def _hold(self, node: Node) -> None:
        assert node.page is not None
        if self._is_idle(node):
            self.idle -= 1
        self.allocator.retain([node.page])

    def _offer(self, node: Node) -> None:
        if node.resident == 0:
            heapq.heappush(self._evictable, (node.used, next(self._order), node))

    def _make_run(self, count: int) -> None:
        """Try to have so many free pages one behind another, for no large part of what is kept."""
        most = self.evicted_pages + min(2 * count, self.allocator.pages // 8)
        while self.evicted_pages < most and self.idle and (lacking := count - self.allocator.longest_free_run) > 0:
            for _ in range(min(lacking, self.idle, most - self.evicted_pages)):
                self._reclaim_page()

    def _reclaim_page(self) -> None:
        """Free the page of the least recently used idle leaf, keeping its content in the host tier if there is one."""
        while True:
            used, _, node = heapq.heappop(self._evictable)
            if self._is_idle(node) and node.resident == 0 and node.used == used:
                break
        page = node.page
        assert page is not None
        slot = self.host.take(self._remove) if len(node.key) == self.allocator.page_size else None
        if slot is None:
            self._remove(node)
        else:
            self.transfers.append(Offload(page, slot))
            self._unsettle(node)
            node.slot = slot
            self.host.offer(node)
        self.evicted_pages += 1

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
            if self.allocator.reference_count(node.page) > 1:  # the tree's reference alone goes
                del self._node_of[node.page]
                self.allocator.release([node.page])
                parent.resident -= 1
                node.page = None
            else:
                self._unsettle(node)
        self.host.give_up(node)
        node.detach()
        self.host.offer(parent)
