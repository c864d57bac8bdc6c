"""Which requests can be admitted, with how much of their cached prefix, and what happens to one that is.

Knows nothing about the order of the queue, the budget of a step, or who is preempted.
"""

from __future__ import annotations

from tessera.cache.prefix import PrefixCache
from tessera.cache.radix import PrefixMatch
from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.sequence.page_growth import PageGrowth
from tessera.sequence.prefix_claims import PrefixClaims
from tessera.sequence.request import SequenceRequest


class Admission:
    """Answers whether a request can run, now or at all, and gives it its first pages.

    Args:
        cache: Prefix cache of the engine.
        claims: Pages that are being computed.
        growth: Gives pages.
        context_length: Most positions of one request.
    """

    def __init__(self, cache: PrefixCache, claims: PrefixClaims, growth: PageGrowth, *, context_length: int) -> None:
        self._cache = cache
        self._claims = claims
        self._growth = growth
        self.context_length = min(context_length, cache.allocator.pages * cache.allocator.page_size)

    def check(self, request: SequenceRequest) -> None:
        """Check that a request could run alone. No side effect.

        Raises:
            ContextLengthError: Its prompt and output are longer than the context or the cache.
            InvalidRequestError: It pins its prompt, and there is no prefix cache or too much of it is pinned.
        """
        if request.pin:
            self._check_pin(request)
        positions = len(request.token_ids) + (request.sampling.max_tokens if request.sampling else 0)
        if positions > self.context_length:
            raise ContextLengthError(
                f"{len(request.token_ids)} prompt tokens and {positions - len(request.token_ids)} output tokens are "
                f"{positions} together; this engine holds at most {self.context_length} of one request",
                param="max_tokens" if request.sampling else "input",
            )

    def _check_pin(self, request: SequenceRequest) -> None:
        allocator = self._cache.allocator
        pages, limit = allocator.pages_for(request.prompt_length), allocator.pages // 2
        if not self._cache.enabled:
            raise InvalidRequestError("nothing can be pinned: `prefix_cache` is off", param="prefix_cache")
        if pages + self._cache.pinned > limit:
            raise InvalidRequestError(
                f"{pages} pages of a prompt are to be pinned beside {self._cache.pinned}; half of the cache, {limit} "
                "pages, is the limit: make `kv_cache_bytes` larger or the pinned prompts shorter",
                param="pinned_prompts",
            )

    def match(self, request: SequenceRequest) -> PrefixMatch:
        """Find what the prefix cache has of a request. No side effect."""
        return self._cache.match(request.cache_ids, request.salt, _reusable_positions(request))

    def fitting(self, request: SequenceRequest, match: PrefixMatch) -> PrefixMatch | None:
        """Return as much of `match` as the request can be admitted with, or None if it has no room. No side effect.

        Copying a partial page takes one page more than computing it does, so a request that does not fit with the copy
        may fit without.
        """
        return next((one for one in (match, match.without_partial()) if self._has_room(request, one)), None)

    def _has_room(self, request: SequenceRequest, match: PrefixMatch) -> bool:
        return self.lacking_pages(request, match) <= 0

    def lacking_pages(self, request: SequenceRequest, match: PrefixMatch) -> int:
        """Return how many pages more must be free for all tokens and the next one; no side effect.

        The next one counts so that a request is not preempted at once.
        """
        positions = len(request.token_ids) + (1 if request.sampling else 0)
        needed = self._cache.allocator.pages_for(positions) - len(match.nodes) + match.offloaded_pages
        return needed - (self._cache.available - self._cache.idle_pages(match))

    def admit(self, request: SequenceRequest, match: PrefixMatch) -> None:
        """Give a request the pages of `match` and those for the rest of its tokens. Ask `fitting` first."""
        request.pages, cursor = self._cache.acquire(match, request.salt, _reusable_positions(request))
        request.computed = len(match.nodes) * self._cache.allocator.page_size + match.partial_count
        if request.preemptions == 0:
            request.cached_tokens, request.shared_pages = request.computed, len(match.nodes)
        # After a preemption, pages that it computed itself come from the cache, too.
        request.shared_pages = min(request.shared_pages, len(match.nodes))
        # All pages of the prompt at once: chunks of two half-admitted prompts would evict each other.
        self._growth.grow(request, request.remaining)
        if request.reuses_prefix:
            request.cursor = cursor
            self._claims.claim(request)


def _reusable_positions(request: SequenceRequest) -> int:
    """Positions that may come from the cache: not the last one, whose logits are needed."""
    return len(request.token_ids) - 1 if request.reuses_prefix else 0
