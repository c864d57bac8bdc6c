"""The pages of a running request as it grows. Decides how many are missing and where they lie; preempts nobody."""

from __future__ import annotations

from tessera.cache.prefix import PrefixCache
from tessera.sequence.request import SequenceRequest

MAX_RESERVED_PAGES = 16
"""Pages that are reserved behind a sequence, if it may grow so far: pages in order are read faster by a CPU."""


class PageGrowth:
    """Gives requests the pages that their next positions need.

    Args:
        cache: Prefix cache that all pages come from.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def missing_pages(self, request: SequenceRequest, count: int) -> int:
        """Return how many pages a request lacks for `count` more positions."""
        return max(0, self._cache.allocator.pages_for(request.computed + count) - len(request.pages))

    def fits(self, request: SequenceRequest, count: int) -> bool:
        """Return whether `grow` would find enough pages. No side effect."""
        return self.missing_pages(request, count) <= self._cache.available

    def grow(self, request: SequenceRequest, count: int) -> None:
        """Give a request the pages for `count` more positions. Ask `fits` first."""
        missing = self.missing_pages(request, count)
        if missing == 0:
            return
        allocator = self._cache.allocator
        max_tokens = request.prompt_length + (request.sampling.max_tokens if request.sampling else 0)
        later = allocator.pages_for(max_tokens) - len(request.pages) - missing
        after = request.pages[-1] if request.pages else None
        request.pages += self._cache.allocate(missing, after, min(max(0, later), MAX_RESERVED_PAGES))
