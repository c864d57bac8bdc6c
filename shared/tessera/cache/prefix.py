"""The prefix cache: a radix tree from token ids to KV pages, on the device and in a host tier behind it.

Every edge is one page of tokens. A shorter edge is always a leaf; a request that continues from it gets a copy of its
page (copy on write). Each salt has a tree of its own, so no tenant can probe another's prompts. Pages that only the
tree references are idle: they are evicted for whoever needs pages, the least recently used first. With a host tier
their content moves there and is fetched on a hit. A request that references a page references all pages above it, so
idle pages can always be evicted from the leaves up. Moves no bytes: `transfers` lists what has to move before the next
step, in order. Knows nothing about requests.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.cache.eviction import EvictionQueue
from tessera.cache.pages import PageAllocator
from tessera.cache.radix import PrefixMatch, RadixNode, TreeCursor, check_trees, longest_prefix
from tessera.cache.tiers.host import HostTier
from tessera.cache.transfers import Copy, Fetch, Offload, Transfer


class PrefixCache:
    """Shares computed pages between requests with a common beginning.

    Args:
        allocator: Allocator of the device's pages. All references are taken and dropped through this cache.
        host_slots: Pages that the host tier can hold; 0 turns it off.
        enabled: False finds nothing and keeps nothing.
    """

    def __init__(self, allocator: PageAllocator, *, host_slots: int = 0, enabled: bool = True) -> None:
        self.allocator = allocator
        self.host = HostTier(host_slots)
        self.enabled = enabled
        self.transfers: list[Transfer] = []
        self.idle = self.pinned = 0
        """Device pages that only the tree references and that are not pinned (evictable); and pinned pages."""
        self.hit_tokens = {"device": 0, "host": 0}
        """Tokens found in the cache since the start, by the tier that held them."""
        self.queried_tokens = self.evicted_pages = 0
        """Tokens looked up, and pages evicted from the device, since the start."""
        self._roots: dict[str, RadixNode] = {}
        self._node_of: dict[int, RadixNode] = {}
        self._clock = itertools.count(1)
        self._evictable = EvictionQueue()

    @property
    def available(self) -> int:
        """Number of pages that `allocate` can give, by evicting idle ones if necessary."""
        return self.allocator.free + self.idle

    @property
    def cached_pages(self) -> int:
        """Number of device pages in the trees."""
        return len(self._node_of)

    def root_cursor(self, salt: str = "") -> TreeCursor:
        """Return the cursor of a request that has no page in the tree yet."""
        return TreeCursor(self._roots.setdefault(salt, RadixNode(None, ())), 0)

    def match(self, ids: Sequence[int], salt: str, limit: int) -> PrefixMatch:
        """Find the longest prefix of `ids[:limit]` in the tree. No side effect.

        Args:
            ids: Cache ids of the request: its token ids, with ids of its own for images.
            salt: Salt of the request.
            limit: First position that must not come from the cache.
        """
        root = self._roots.get(salt)
        if root is None or not self.enabled:
            return PrefixMatch([], None, 0)
        return longest_prefix(root, ids[:limit], self.allocator.page_size)

    def idle_pages(self, match: PrefixMatch) -> int:
        """Return how many device pages of the match are idle now and would no longer be after `acquire`."""
        return sum(self._is_idle(node) for node in (*match.nodes, match.partial) if node is not None)

    def acquire(self, match: PrefixMatch, salt: str, queried: int) -> tuple[list[int], TreeCursor]:
        """Add a reference to every page of a match.

        Ask first: `available` must cover the match's `offloaded_pages` and its copy beside its `idle_pages`.

        Args:
            match: Result of `match` since which nothing has been allocated.
            salt: Salt that the match was made with.
            queried: Positions that were looked up, for the hit rate.

        Returns:
            The pages in order, the copy of a partial page last; and the cursor behind the whole pages.
        """
        self.queried_tokens += queried
        now = next(self._clock)
        resident = [node for node in match.nodes if node.page is not None]
        offloaded = [node for node in match.nodes if node.page is None]
        for node in resident:
            self._retain(node)
        for node in match.nodes:
            node.last_used = now
        if match.partial is not None:
            self._retain(match.partial)  # until it is copied
        for node in offloaded:
            node.pin_count += 1  # until it is fetched: the allocations below must not evict it
        self.hit_tokens["device"] += len(resident) * self.allocator.page_size + match.partial_count
        self.hit_tokens["host"] += len(offloaded) * self.allocator.page_size
        for node in offloaded:
            (page,) = self.allocate(1)
            assert node.host_slot is not None
            self.transfers.append(Fetch(node.host_slot, page))
            self.host.free_slot(node)
            node.pin_count -= 1
            self._attach_page(node, page)
        pages = [node.page for node in match.nodes if node.page is not None]
        cursor = TreeCursor(match.nodes[-1], len(match.nodes)) if match.nodes else self.root_cursor(salt)
        if match.partial is not None:
            assert match.partial.page is not None
            match.partial.last_used = now
            (copy,) = self.allocate(1)
            self.transfers.append(Copy(match.partial.page, copy))
            self.release([match.partial.page])
            pages.append(copy)
        return pages, cursor

    def allocate(self, count: int, after: int | None = None, reserve: int = 0) -> list[int]:
        """Take pages as from the allocator, evicting idle pages if too few are free. Ask `available` first.

        To get one run with its reserve, a few idle pages more are evicted: those that would be evicted next anyway.
        """
        while self.allocator.free < count:
            self._evict_page()
        if reserve and (after is None or not self.allocator.can_extend(after, count)):
            self._evict_for_run(count + reserve)
        return self.allocator.allocate(count, after, reserve)

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each of `pages`. Pages in the tree stay there, idle."""
        for page in pages:
            self.allocator.release([page])
            node = self._node_of.get(page)
            if node is not None and self.allocator.reference_count(page) == 1 and node.pin_count == 0:
                self._mark_idle(node)

    def insert(
        self, cursor: TreeCursor, ids: Sequence[int], pages: list[int], computed: int, *, with_partial: bool
    ) -> None:
        """Insert a request's computed pages into the tree.

        A page that another request inserted before replaces this request's in `pages`: so whoever references a page
        always references those above it.

        Args:
            cursor: Cursor of the request; moved behind its last whole page.
            ids: Cache ids of the request.
            pages: Pages of the request; changed in place.
            computed: Number of positions whose keys and values are computed.
            with_partial: Whether a last page that is not full is inserted too, at the end of a prompt and of an answer.
        """
        if not self.enabled or cursor.node.is_removed:
            return
        size, now = self.allocator.page_size, next(self._clock)
        while (cursor.depth + 1) * size <= computed:
            at = cursor.depth * size
            cursor.node = self._insert_page(cursor.node, tuple(ids[at : at + size]), pages, cursor.depth)
            cursor.node.last_used = now
            cursor.depth += 1
        at = cursor.depth * size
        if with_partial and at < computed:
            self._insert_partial(cursor.node, tuple(ids[at:computed]), pages[cursor.depth], now)

    def invalidate(self, cursor: TreeCursor, depth: int) -> None:
        """Remove a request's pages from `depth` on, and everything inserted below them: their content is not usable."""
        node = cursor.node
        if node.is_removed:
            return
        if cursor.depth <= depth:  # only a partial page of the request is in the tree
            for child in [child for child in node.children.values() if len(child.key) < self.allocator.page_size]:
                self._remove_subtree(child)
            return
        for _ in range(cursor.depth - depth - 1):
            assert node.parent is not None
            node = node.parent
        self._remove_subtree(node)

    def pin(self, nodes: Iterable[RadixNode]) -> None:
        """Exempt pages from eviction. Pin a whole path from its root on."""
        for node in nodes:
            if self._is_idle(node):
                self.idle -= 1
            self.pinned += node.pin_count == 0
            node.pin_count += 1

    def unpin(self, nodes: Iterable[RadixNode]) -> None:
        """Undo one `pin` of the same nodes."""
        for node in nodes:
            if node.is_removed:
                continue
            assert node.pin_count > 0
            node.pin_count -= 1
            self.pinned -= node.pin_count == 0
            if self._is_idle(node):
                self._mark_idle(node)

    def take_transfers(self) -> list[Transfer]:
        """Return what has to move before the next step, in order, and empty the list."""
        transfers, self.transfers = self.transfers, []
        return transfers

    def prune(self) -> None:
        """Drop the trees of salts that hold nothing. Call only without requests: a cursor may point at such a root."""
        self._roots = {salt: root for salt, root in self._roots.items() if root.children}

    def clear(self, held: Iterable[Sequence[int]]) -> None:
        """Drop everything but the references of `held`, the pages of every request: after a violated invariant."""
        self._roots.clear()
        self._node_of.clear()
        self._evictable.clear()
        self.host.reset()
        self.transfers.clear()
        self.idle = self.pinned = 0
        self.allocator.reset(held)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Check that pages, trees and counters agree with `held`, the pages of every request.

        Raises:
            AssertionError: They disagree; says where. This is a bug of the cache or of its caller.
        """
        nodes = check_trees(self._roots.values(), self._node_of, self.allocator.page_size)
        self.allocator.check_integrity(Counter(itertools.chain(*held, self._node_of)))
        idle = sum(map(self._is_idle, nodes))
        assert idle == self.idle, f"{self.idle} pages counted as idle, {idle} are"
        pinned = sum(node.pin_count > 0 for node in nodes)
        assert pinned == self.pinned, f"{self.pinned} pages counted as pinned, {pinned} are"
        self.host.check_integrity(nodes)

    def _insert_page(self, parent: RadixNode, key: tuple[int, ...], pages: list[int], depth: int) -> RadixNode:
        page = pages[depth]
        child = parent.children.get(key)
        own = self._node_of.get(page)
        if child is None and own is not None:  # it was inserted as a partial page, and is full now
            own.lengthen(key)
            return own
        if child is None:
            child = parent.add_child(key)
        if child.page is None:
            self.host.free_slot(child)
            if own is not None:
                self._remove_subtree(own)
            self._attach_page(child, page)
        elif child.page != page:
            self._retain(child)
            pages[depth] = child.page
            if own is not None:
                self._remove_subtree(own)
            self.release([page])
        return child

    def _insert_partial(self, parent: RadixNode, key: tuple[int, ...], page: int, now: int) -> None:
        own = self._node_of.get(page)
        known = parent.children.get(key)
        if own is not None:
            if known is None:
                own.lengthen(key)
            own.last_used = now
        elif known is None:
            child = parent.add_child(key)
            child.last_used = now
            self._attach_page(child, page)

    def _attach_page(self, node: RadixNode, page: int) -> None:
        """Give a node a page that a request references, and add the tree's own reference."""
        assert node.parent is not None
        self.allocator.retain([page])
        node.page = page
        node.parent.resident_children += 1
        self._node_of[page] = node

    def _is_idle(self, node: RadixNode) -> bool:
        return node.page is not None and node.pin_count == 0 and self.allocator.reference_count(node.page) == 1

    def _is_evictable(self, node: RadixNode) -> bool:
        return self._is_idle(node) and node.resident_children == 0

    def _retain(self, node: RadixNode) -> None:
        assert node.page is not None
        if self._is_idle(node):
            self.idle -= 1
        self.allocator.retain([node.page])

    def _mark_idle(self, node: RadixNode) -> None:
        self.idle += 1
        if node.resident_children == 0:
            self._evictable.offer(node)

    def _evict_for_run(self, count: int) -> None:
        """Try to get a run of `count` free pages by evicting at most 2 × `count` pages and an eighth of the pool."""
        limit = self.evicted_pages + min(2 * count, self.allocator.pages // 8)
        while self.evicted_pages < limit and self.idle and (lacking := count - self.allocator.longest_free_run) > 0:
            for _ in range(min(lacking, self.idle, limit - self.evicted_pages)):
                self._evict_page()

    def _evict_page(self) -> None:
        """Free the page of the least recently used idle leaf; its content moves to the host tier if that has room."""
        node = self._evictable.pop(self._is_evictable)
        assert node is not None, "pages are wanted that are not available"
        slot = self.host.take_slot(self._remove_subtree) if len(node.key) == self.allocator.page_size else None
        if slot is None:
            self._remove_subtree(node)
        else:
            self.transfers.append(Offload(self._detach_page(node), slot))
            node.host_slot = slot
            self.host.offer(node)
        self.evicted_pages += 1

    def _detach_page(self, node: RadixNode) -> int:
        """Take an idle page from its node, free it, and return it."""
        page, parent = node.page, node.parent
        assert page is not None
        assert parent is not None
        self.idle -= 1
        del self._node_of[page]
        self.allocator.release([page])
        node.page = None
        parent.resident_children -= 1
        if parent.resident_children == 0 and self._is_idle(parent):
            self._evictable.offer(parent)
        return page

    def _remove_subtree(self, node: RadixNode) -> None:
        """Take a node with everything below it out of the tree, pinned or not."""
        for child in list(node.children.values()):
            self._remove_subtree(child)
        parent = node.parent
        assert parent is not None
        if node.pin_count:
            node.pin_count = 0
            self.pinned -= 1
            self.idle += self._is_idle(node)
        if node.page is not None:
            if self.allocator.reference_count(node.page) > 1:  # requests keep the page, only the tree's reference goes
                del self._node_of[node.page]
                self.allocator.release([node.page])
                parent.resident_children -= 1
                node.page = None
            else:
                self._detach_page(node)
        self.host.free_slot(node)
        node.detach()
        self.host.offer(parent)
