"""The sequence scheduler: one token budget per step, decodes first, prefill in chunks, admission by pages.

Who is admitted next says `tessera.sequence.fair_queue`; what needs no computing says the prefix cache. A request whose
next page is just being computed by another waits for it instead of computing it too. When pages run out, the request of
the lowest priority that has computed least gives its pages back and goes on later; its tokens are kept, and so are its
pages while nobody needs them. Does not know tensors: it decides which positions of which request are computed next.
"""

from __future__ import annotations

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.cache.radix import Match, Node
from tessera.errors import ContextLengthError, InvalidRequestError, OverloadedError
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.fair_queue import Waiting
from tessera.sequence.request import SequenceRequest
from tessera.sequence.speculation.policy import Speculation

DECODE_COST = 2.0
"""A sampled token counts as so many prompt tokens in a tenant's share (as in Sheng et al. 2024)."""
ROOM = 16
"""Pages that others leave free behind a sequence, if it may grow so far: in order, they are read faster."""
_Claim = tuple[Node, tuple[int, ...]]


class Scheduler:
    """Queue, running set and pages of one sequence engine."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_batch_tokens: int,
        max_running: int,
        max_waiting: int,
        context_length: int,
        speculation: Speculation | None = None,
    ) -> None:
        self.cache = cache
        self.speculation = speculation
        self.max_batch_tokens = max_batch_tokens
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.context_length = min(context_length, self.allocator.pages * self.allocator.page_size)
        self.waiting = Waiting()
        self.running: list[SequenceRequest] = []
        self.preemptions = 0
        self._claims: dict[_Claim, SequenceRequest] = {}
        """Pages that are just being computed, as the tree would call them, and by whom."""

    @property
    def allocator(self) -> PageAllocator:
        """Of the device's pages."""
        return self.cache.allocator

    def check(self, request: SequenceRequest, *, ahead: int = 0) -> None:
        """Say why a request cannot be queued, if so. No side effect.

        Args:
            request: the one in question.
            ahead: requests that will be queued before it.

        Raises:
            OverloadedError: the queue is full.
            ContextLengthError: it could never fit, even alone.
            InvalidRequestError: it asks for pages to be kept, and there is no cache, or they are too many.
        """
        if request.pin:
            self._check_pin(request)
        asked = len(request.token_ids) + (request.sampling.max_tokens if request.sampling else 0)
        if asked > self.context_length:
            raise ContextLengthError(
                f"{len(request.token_ids)} prompt tokens and {asked - len(request.token_ids)} output tokens are "
                f"{asked} together; this engine holds at most {self.context_length} of one request",
                param="max_tokens" if request.sampling else "input",
            )
        if len(self.waiting) + ahead >= self.max_waiting:
            raise OverloadedError(
                f"{len(self.waiting) + ahead} requests are waiting, which is the limit; try again later",
                retry_after=1.0,
            )

    def _check_pin(self, request: SequenceRequest) -> None:
        pages, most = self.allocator.pages_for(request.prompt_length), self.allocator.pages // 2
        if not self.cache.enabled:
            raise InvalidRequestError("nothing can be pinned: `prefix_cache` is off", param="prefix_cache")
        if pages + self.cache.pinned > most:
            raise InvalidRequestError(
                f"{pages} pages of a prompt are to be pinned beside {self.cache.pinned}; half of the cache, {most} "
                "pages, is the limit: make `kv_cache_bytes` larger or the pinned prompts shorter",
                param="pinned_prompts",
            )

    def submit(self, request: SequenceRequest) -> None:
        """Queue a request. Raises what `check` raises."""
        self.check(request)
        self.waiting.enter(request)
        self.waiting.add(request)

    def remove(self, request: SequenceRequest, *, invalidate: bool = False) -> None:
        """Take a request out (ended or cancelled) and give its pages back; the cache keeps them for others.

        Args:
            request: waits or runs here.
            invalidate: what it computed is not to be used again.
        """
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        self.waiting.leave(request)
        if self.speculation is not None:
            self.speculation.forget(request)
        self._release(request, invalidate=invalidate)

    def expired(self, now: float) -> list[SequenceRequest]:
        """Requests whose deadline is over, in seconds of the monotonic clock."""
        return [request for request in (*self.running, *self.waiting) if request.deadline <= now]

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or len(self.waiting))

    def schedule(self) -> Batch:
        """Choose the next step's chunks and give them their pages."""
        chunks: dict[SequenceRequest, Chunk] = {}
        # Who may take another's place is admitted before that one is given its share of the step.
        budget = self._admit_all(chunks, self.max_batch_tokens, urgent=True)
        # Decodes (one position left) before prefills, then by priority, older before younger.
        for request in sorted(self.running, key=lambda r: (r.remaining > 1, r.priority, r.arrival)):
            if budget == 0:
                break
            if request not in self.running or request in chunks:  # preempted by an earlier one of this loop, or new
                continue
            if request.is_full:  # its last token is on the way, and nothing is computed behind it
                continue
            count = min(request.remaining, budget)
            if not self._make_room(request, count, chunks):
                continue
            chunks[request] = Chunk(request, request.computed, count)
            budget -= count
        budget = self._guess(chunks, budget)
        self._admit_all(chunks, budget, urgent=False)
        return Batch(list(chunks.values()), self.cache.take_transfers())

    def _guess(self, chunks: dict[SequenceRequest, Chunk], budget: int) -> int:
        """Lengthen decodes by guesses of what comes next, as far as budget and free pages go. Returns what is left."""
        decoding = [r for r, chunk in chunks.items() if chunk.count == 1 and chunk.completes and r.sampling is not None]
        if self.speculation is None or not decoding or len(decoding) < len(chunks):
            return budget
        for request, guess in self.speculation.draft(decoding).items():
            kept = guess[:budget]
            if kept and self._missing(request, 1 + len(kept)) <= self.cache.available:
                self._grow(request, 1 + len(kept))
                chunks[request] = Chunk(request, request.computed, 1 + len(kept), tuple(kept))
                budget -= len(kept)
        return budget

    def accept(self, request: SequenceRequest, tokens: int) -> None:
        """Note that so many guessed tokens, which are computed, have become the request's own."""
        request.computed += tokens
        self.waiting.charge(request.tenant, DECODE_COST * tokens)

    def _admit_all(self, chunks: dict[SequenceRequest, Chunk], budget: int, *, urgent: bool) -> int:
        """Admit from the queue while there is room. Returns what is left of the budget.

        Args:
            chunks: of this step; added to.
            budget: tokens that the step has left.
            urgent: only those of a higher priority than somebody who runs.
        """
        passed: set[SequenceRequest] = set()
        while budget > 0 and len(self.waiting):
            found = next((request for request in self.waiting if request not in passed), None)
            if found is None or (urgent and all(other.priority <= found.priority for other in self.running)):
                break
            match = self._match(found)
            if self._is_claimed(found, match):
                passed.add(found)
                continue
            fitting = self._make_place(found, match, chunks)
            if fitting is None:
                break
            self._admit(found, fitting)
            count = min(found.remaining, budget)
            chunks[found] = Chunk(found, found.computed, count)
            budget -= count
        return budget

    def advance(self, batch: Batch) -> None:
        """Note that a batch has been computed: its pages are there for others."""
        for chunk in batch.chunks:
            request = chunk.request
            request.computed = chunk.start + chunk.known_count
            if request.computed > request.prompt_length:
                self.waiting.charge(request.tenant, DECODE_COST)
            if request.cursor is None:
                continue
            whole = request.computed // self.allocator.page_size
            ends = request.computed == request.prompt_length
            if whole > request.cursor.depth or ends:
                self.cache.extend(request.cursor, request.cache_ids, request.pages, request.computed, ends=ends)
            self._unclaim(request)
            if request.remaining > 1:
                self._claim(request)

    def pin(self, request: SequenceRequest) -> None:
        """Keep the whole pages of a request's computed prompt in the cache, whoever needs pages."""
        prompt = request.cache_ids[: request.prompt_length]
        self.cache.pin(self.cache.match(prompt, request.salt, len(prompt)).nodes)

    def clear_cache(self) -> None:
        """Drop everything that the prefix cache has; what runs goes on."""
        self._claims.clear()
        self.cache.clear([request.pages for request in self.running])
        for request in self.running:
            request.claim = None
            if request.cursor is not None:
                request.cursor = self.cache.root(request.salt)

    def check_integrity(self) -> None:
        """The pages of all requests and of the cache are exactly the used ones. Run when idle and in tests."""
        self.cache.check_integrity([request.pages for request in self.running])
        held = [request.request_id for request in self.waiting if request.pages]
        assert not held, f"requests wait with pages: {held}"
        assert all(owner in self.running for owner in self._claims.values()), "a page is claimed by nobody"

    def _match(self, request: SequenceRequest) -> Match:
        limit = len(request.token_ids) - 1 if request.reuses_prefix else 0
        return self.cache.match(request.cache_ids, request.salt, limit)

    def _next_page(self, request: SequenceRequest, node: Node, depth: int) -> _Claim:
        size = self.allocator.page_size
        return node, tuple(request.cache_ids[depth * size : (depth + 1) * size])

    def _is_claimed(self, request: SequenceRequest, match: Match) -> bool:
        if not request.reuses_prefix or not self._claims:
            return False
        node = match.nodes[-1] if match.nodes else self.cache.root(request.salt).node
        return self._next_page(request, node, len(match.nodes)) in self._claims

    def _claim(self, request: SequenceRequest) -> None:
        assert request.cursor is not None
        claim = self._next_page(request, request.cursor.node, request.cursor.depth)
        if self.cache.enabled and claim not in self._claims:
            self._claims[claim] = request
            request.claim = claim

    def _unclaim(self, request: SequenceRequest) -> None:
        if request.claim is not None:
            del self._claims[request.claim]
            request.claim = None

    def _has_room(self, request: SequenceRequest, match: Match) -> bool:
        """Room for all it has so far and the token it samples next, so that it is not preempted at once."""
        positions = len(request.token_ids) + (1 if request.sampling else 0)
        needed = self.allocator.pages_for(positions) - len(match.nodes) + match.absent
        return needed <= self.cache.available - self.cache.idle_pages(match)

    def _make_place(
        self, request: SequenceRequest, match: Match, scheduled: dict[SequenceRequest, Chunk]
    ) -> Match | None:
        """What of `match` a request can be admitted with, preempting others of lower priority for it; or None."""
        while True:
            if len(self.running) < self.max_running:
                for fitting in (match, match.without_copy()):
                    if self._has_room(request, fitting):
                        return fitting
            others = [r for r in self.running if r not in scheduled and r.priority > request.priority]
            if not others:
                return None
            self._preempt(max(others, key=_expendable))
            match = self._match(request)

    def _admit(self, request: SequenceRequest, match: Match) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.pages, cursor = self.cache.acquire(
            match, request.salt, len(request.token_ids) - 1 if request.reuses_prefix else 0
        )
        request.computed = len(match.nodes) * self.allocator.page_size + match.partial_count
        if request.preemptions == 0:
            request.cached_tokens, request.shared_pages = request.computed, len(match.nodes)
        # What it computed again after a preemption is its own too.
        request.shared_pages = min(request.shared_pages, len(match.nodes))
        # All pages of the prompt at once: chunks of two half-admitted prompts would evict each other.
        self._grow(request, request.remaining)
        self.waiting.charge(request.tenant, request.remaining)
        if request.reuses_prefix:
            request.cursor = cursor
            self._claim(request)

    def _missing(self, request: SequenceRequest, count: int) -> int:
        return max(0, self.allocator.pages_for(request.computed + count) - len(request.pages))

    def _grow(self, request: SequenceRequest, count: int) -> None:
        missing = self._missing(request, count)
        if missing == 0:
            return
        most = request.prompt_length + (request.sampling.max_tokens if request.sampling else 0)
        room = self.allocator.pages_for(most) - len(request.pages) - missing
        after = request.pages[-1] if request.pages else None
        request.pages += self.cache.allocate(missing, after, min(max(0, room), ROOM))

    def _make_room(self, request: SequenceRequest, count: int, scheduled: dict[SequenceRequest, Chunk]) -> bool:
        """Get the pages for a chunk, preempting others for it. False when `request` itself had to go."""
        while self._missing(request, count) > self.cache.available:
            victim = max((other for other in self.running if other not in scheduled), key=_expendable)
            self._preempt(victim)
            if victim is request:
                return False
        self._grow(request, count)
        return True

    def _preempt(self, request: SequenceRequest) -> None:
        self._release(request)
        self.running.remove(request)
        request.computed = 0
        request.pooled = None
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.add(request)

    def _release(self, request: SequenceRequest, *, invalidate: bool = False) -> None:
        self._unclaim(request)
        if request.cursor is not None:
            if invalidate:
                self.cache.forget(request.cursor, request.shared_pages)
            elif request.computed:
                self.cache.extend(request.cursor, request.cache_ids, request.pages, request.computed, ends=True)
        request.cursor = None
        self.cache.release(request.pages)
        request.pages = []


def _expendable(request: SequenceRequest) -> tuple[int, int, int]:
    """The greatest goes first: of the lowest priority, the one that computed least, the youngest."""
    return request.priority, -request.computed, request.arrival
