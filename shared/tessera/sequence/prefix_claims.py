"""Claims on pages that are being computed, so that requests with the same beginning compute it once.

A request whose next page is claimed by another is not admitted; it finds the page in the prefix cache when it is
computed, or computes it when the owner of the claim has left. Knows nothing about budgets or free pages.
"""

from __future__ import annotations

from collections.abc import Collection

from tessera.cache.prefix import PrefixCache
from tessera.cache.radix import PrefixMatch, RadixNode
from tessera.sequence.request import SequenceRequest

_Claim = tuple[RadixNode, tuple[int, ...]]
"""A page by the place that it will have in the tree: its parent node and its edge."""


class PrefixClaims:
    """The pages that running requests are computing.

    Args:
        cache: Prefix cache that the pages will be in.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._owners: dict[_Claim, SequenceRequest] = {}

    def is_claimed(self, request: SequenceRequest, match: PrefixMatch) -> bool:
        """Return whether another request is computing the first whole page behind `match`."""
        if not request.reuses_prefix or not self._owners:
            return False
        node = match.nodes[-1] if match.nodes else self._cache.root_cursor(request.salt).node
        return self._next_page(request, node, len(match.nodes)) in self._owners

    def claim(self, request: SequenceRequest) -> None:
        """Claim the page behind a request's cursor, unless another request has."""
        assert request.cursor is not None
        claim = self._next_page(request, request.cursor.node, request.cursor.depth)
        if self._cache.enabled and claim not in self._owners:
            self._owners[claim] = request
            request.claim = claim

    def release(self, request: SequenceRequest) -> None:
        """Give up a request's claim, if it has one."""
        if request.claim is not None:
            del self._owners[request.claim]
            request.claim = None

    def clear(self) -> None:
        """Give up all claims: the tree that they refer to is dropped."""
        for request in self._owners.values():
            request.claim = None
        self._owners.clear()

    def check_integrity(self, running: Collection[SequenceRequest]) -> None:
        """Check that every claim belongs to a running request.

        Raises:
            AssertionError: One does not. This is a bug of the scheduler.
        """
        assert all(owner in running for owner in self._owners.values()), "a page is claimed by nobody"

    def _next_page(self, request: SequenceRequest, node: RadixNode, depth: int) -> _Claim:
        size = self._cache.allocator.page_size
        return node, tuple(request.cache_ids[depth * size : (depth + 1) * size])
