"""The sequence scheduler: chooses which positions of which requests the next step computes, and gives them pages.

Every step has one budget of tokens: decodes first, then prefills in chunks, then new requests as long as pages suffice.
The parts read alone: the order of admission (`fair_queue`), who can be admitted (`admission`), the order within a step
and who is preempted (`step_choice`), what tenants owe each other (`shares`), pages (`page_growth`), and prompts that
several requests share (`prefix_claims`). A preempted request gives its pages back and goes on later; its tokens are
kept, and its pages stay in the prefix cache until somebody needs them. Knows nothing about tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.cache.radix import PrefixMatch
from tessera.sequence import shares
from tessera.sequence.admission import Admission
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.intake import Intake
from tessera.sequence.page_growth import PageGrowth
from tessera.sequence.prefix_claims import PrefixClaims
from tessera.sequence.request import RequestState, SequenceRequest
from tessera.sequence.shares import Holdings
from tessera.sequence.speculation.policy import Speculation
from tessera.sequence.step_choice import choose_victim, requests_to_draft, step_order

DECODE_COST = 2.0
"""Prompt tokens that one sampled token counts for in a tenant's share (as in Sheng et al. 2024)."""


class Scheduler:
    """Queue, running requests and pages of one sequence engine.

    Args:
        cache: Prefix cache; the scheduler takes and drops all references to its pages.
        max_batch_tokens: Positions that one step may compute.
        max_running: Requests that may run at once.
        max_waiting: Requests that may wait before new ones are refused.
        context_length: Most positions of one request.
        speculation: Drafts tokens; None turns speculative decoding off.
    """

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
        self.running: list[SequenceRequest] = []
        self.intake = Intake(max_waiting, self.running)
        self.preemptions = 0
        """Number of preemptions since the start."""
        self.fair_preemptions = 0
        """Number of those by which a tenant gave up what it held beyond its share."""
        self._claims = PrefixClaims(cache)
        self._growth = PageGrowth(cache)
        self._admission = Admission(cache, self._claims, self._growth, context_length=context_length)

    @property
    def allocator(self) -> PageAllocator:
        """Allocator of the device's pages."""
        return self.cache.allocator

    @property
    def context_length(self) -> int:
        """Most positions of one request: the model's context, or what the cache holds if that is less."""
        return self._admission.context_length

    def schedule(self) -> Batch:
        """Choose the next step's chunks and give them their pages."""
        chunks: dict[SequenceRequest, Chunk] = {}
        # A request that may displace a running one is admitted before that one gets its share of the step.
        budget = self._admit_waiting(chunks, self.max_batch_tokens, urgent_only=True)
        newcomers, alone = self._admit_newcomers(chunks, budget)
        if alone:
            chunks |= {request: Chunk(request, request.computed, request.remaining) for request in alone}
            return Batch(list(chunks.values()), self.cache.take_transfers())
        budget = self._continue_running(chunks, budget, newcomers)
        budget = self._add_draft_tokens(chunks, budget)
        self._admit_waiting(chunks, budget, urgent_only=False)
        return Batch(list(chunks.values()), self.cache.take_transfers())

    def _admit_newcomers(
        self, chunks: dict[SequenceRequest, Chunk], budget: int
    ) -> tuple[list[SequenceRequest], list[SequenceRequest]]:
        """Admit requests of tenants that hold less than others, who give way to them.

        Returns the requests, and those of them whose first token gets this step to itself.
        """
        newcomers: list[SequenceRequest] = []
        alone: list[SequenceRequest] = []
        queue, passed = self.intake.queue, set[SequenceRequest]()
        while len(queue):
            held, firsts = Holdings(self.running), queue.first_of_lines()
            urgent = (one for one in firsts if one.priority == firsts[0].priority and one not in passed)
            request = next((one for one in urgent if shares.is_newcomer(one, held)), None)
            if request is None:
                break
            passed.add(request)
            match = self._admission.match(request)
            if self._claims.is_claimed(request, match):
                continue
            fitting = self._make_place(request, match, {*chunks, *newcomers})
            if fitting is None:
                continue
            own_step = shares.gets_own_step(request, Holdings(self.running), budget, queue.served)
            self._admit(request, fitting)
            newcomers.append(request)
            if own_step and not chunks:
                alone.append(request)
                budget -= request.remaining
        return newcomers, alone

    def _continue_running(
        self, chunks: dict[SequenceRequest, Chunk], budget: int, newcomers: list[SequenceRequest]
    ) -> int:
        """Add chunks of running requests as far as the budget goes. Returns what is left of it.

        Args:
            chunks: Chunks of this step; added to.
            budget: Positions that the step may still compute.
            newcomers: Requests that this step does not preempt.
        """
        # The last token of a full request is pending, and nothing is computed behind that.
        ready = [one for one in self.running if one not in chunks and not one.is_full]
        allowances = shares.step_allowances(ready, budget, self.intake.queue.served)
        for request in step_order(ready, Holdings(self.running).pages):
            share = request.priority, request.tenant
            count = min(request.remaining, allowances[share])
            if count == 0 or request.state is not RequestState.RUNNING:  # preempted in this loop
                continue
            if not self._grow_or_preempt(request, count, {*chunks, *newcomers} - {request}):
                continue
            chunks[request] = Chunk(request, request.computed, count)
            allowances[share] -= count
            budget -= count
        return budget

    def _add_draft_tokens(self, chunks: dict[SequenceRequest, Chunk], budget: int) -> int:
        """Lengthen decodes by draft tokens, as far as budget and free pages go. Returns what is left of the budget."""
        if self.speculation is None or not (decoding := requests_to_draft(chunks)):
            return budget
        for request, draft in self.speculation.draft(decoding).items():
            draft_ids = tuple(draft[:budget])
            count = 1 + len(draft_ids)
            if draft_ids and self._growth.fits(request, count):
                self._growth.grow(request, count)
                chunks[request] = Chunk(request, request.computed, count, draft_ids)
                budget -= len(draft_ids)
        return budget

    def _admit_waiting(self, chunks: dict[SequenceRequest, Chunk], budget: int, *, urgent_only: bool) -> int:
        """Admit requests from the queue while there is room. Returns what is left of the budget.

        Args:
            chunks: Chunks of this step; added to.
            budget: Positions that the step may still compute.
            urgent_only: Admit only requests of a higher priority than one that runs.
        """
        queue, passed = self.intake.queue, set[SequenceRequest]()
        while budget > 0 and len(queue):
            request = next((one for one in queue if one not in passed), None)
            if request is None:
                break
            if urgent_only and all(other.priority <= request.priority for other in self.running):
                break
            match = self._admission.match(request)
            if self._claims.is_claimed(request, match):
                passed.add(request)
                continue
            fitting = self._make_place(request, match, chunks)
            if fitting is None:
                break
            self._admit(request, fitting)
            count = min(request.remaining, budget)
            chunks[request] = Chunk(request, request.computed, count)
            budget -= count
        return budget

    def _make_place(
        self, request: SequenceRequest, match: PrefixMatch, scheduled: Collection[SequenceRequest]
    ) -> PrefixMatch | None:
        """Return what of `match` a request can be admitted with, or None.

        May preempt requests of lower priority, and those of tenants that hold more than their share.
        """
        while True:
            if len(self.running) < self.max_running:
                fitting = self._admission.fitting(request, match)
                if fitting is not None:
                    return fitting
            others = [one for one in self.running if one not in scheduled and one.priority > request.priority]
            victim = choose_victim(others, Counter()) if others else self._giver(request, match, scheduled)
            if victim is None:
                return None
            self._preempt(victim)
            match = self._admission.match(request)

    def _giver(
        self, request: SequenceRequest, match: PrefixMatch, scheduled: Collection[SequenceRequest]
    ) -> SequenceRequest | None:
        """Return who gives a slot or pages to a request of the same priority because its tenant holds too much."""
        held, served = Holdings(self.running), self.intake.queue.served
        equals = [one for one in self.running if one not in scheduled and one.priority == request.priority]
        if len(self.running) >= self.max_running:
            giver = shares.slot_giver(request, equals, held, served)
        else:
            needed, lacking = self.allocator.pages_for(request.remaining), self._admission.lacking_pages(request, match)
            giver = shares.page_giver(request, equals, held, served, needed=needed, lacking=lacking)
        self.fair_preemptions += giver is not None
        return giver

    def _admit(self, request: SequenceRequest, match: PrefixMatch) -> None:
        self.intake.queue.remove(request)
        self.running.append(request)
        request.state = RequestState.RUNNING
        self._admission.admit(request, match)
        self.intake.queue.charge(request.tenant, request.remaining)

    def _grow_or_preempt(self, request: SequenceRequest, count: int, scheduled: Collection[SequenceRequest]) -> bool:
        """Get the pages for a chunk, preempting others for them. False if `request` itself was preempted."""
        while not self._growth.fits(request, count):
            others = [one for one in self.running if one not in scheduled]
            victim = choose_victim(others, Holdings(self.running).pages)
            self._preempt(victim)
            if victim is request:
                return False
        self._growth.grow(request, count)
        return True

    def _preempt(self, request: SequenceRequest) -> None:
        self._release_pages(request)
        self.running.remove(request)
        request.computed = 0
        request.pooled = None
        request.preemptions += 1
        self.preemptions += 1
        self.intake.enqueue(request)

    def advance(self, batch: Batch) -> None:
        """Note that a batch has been computed: its pages can be used by others."""
        for chunk in batch.chunks:
            request = chunk.request
            request.computed = chunk.start + chunk.known_count
            if request.computed > request.prompt_length:
                self.intake.queue.charge(request.tenant, DECODE_COST)
            if request.cursor is None:
                continue
            whole_pages = request.computed // self.allocator.page_size
            ends = request.computed == request.prompt_length
            if whole_pages > request.cursor.depth or ends:
                self.cache.insert(request.cursor, request.cache_ids, request.pages, request.computed, with_partial=ends)
            self._claims.release(request)
            if request.remaining > 1:
                self._claims.claim(request)

    def accept(self, request: SequenceRequest, tokens: int) -> None:
        """Note that `tokens` draft tokens, which are computed, have become the request's own."""
        request.computed += tokens
        self.intake.queue.charge(request.tenant, DECODE_COST * tokens)

    def check(self, request: SequenceRequest, state: RequestState = RequestState.WAITING) -> None:
        """Check that a request may come to `state`. No side effect.

        Raises:
            OverloadedError: Too many requests wait.
            ContextLengthError: The request could never run, even alone.
            InvalidRequestError: It pins its prompt, and there is no prefix cache or too much of it is pinned.
        """
        self._admission.check(request)
        self.intake.check_room(state, request.tenant)

    def submit(self, request: SequenceRequest) -> None:
        """Queue a request that waits nowhere yet. Raises what `check` raises."""
        self.check(request)
        self.intake.queue.enter(request)
        self.intake.enqueue(request)

    def remove(self, request: SequenceRequest, *, invalidate: bool = False) -> None:
        """End a request that runs or waits to be admitted, and drop its pages; the cache keeps them for others.

        Args:
            request: Nothing happens if it is not here.
            invalidate: Whether what it computed must not be used again.
        """
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.intake.queue.remove(request)
        else:
            return
        request.state = RequestState.ENDED
        self.intake.queue.leave(request)
        if self.speculation is not None:
            self.speculation.forget(request)
        self._release_pages(request, invalidate=invalidate)

    def expired(self, now: float) -> list[SequenceRequest]:
        """Return the requests whose deadline was before `now`, in seconds of the monotonic clock."""
        return [request for request in (*self.running, *self.intake.queue) if request.deadline <= now]

    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self.running or len(self.intake.queue))

    def pin(self, request: SequenceRequest) -> None:
        """Keep the whole pages of a request's computed prompt in the cache, whoever needs pages."""
        prompt = request.cache_ids[: request.prompt_length]
        self.cache.pin(self.cache.match(prompt, request.salt, len(prompt)).nodes)

    def clear_cache(self) -> None:
        """Drop everything that the prefix cache holds; running requests go on."""
        self._claims.clear()
        self.cache.clear([request.pages for request in self.running])
        for request in self.running:
            if request.cursor is not None:
                request.cursor = self.cache.root_cursor(request.salt)

    def check_integrity(self) -> None:
        """Check that the used pages are exactly those of requests and of the cache. Run when idle and in tests.

        Raises:
            AssertionError: They are not. This is a bug of the scheduler or of the cache.
        """
        self.cache.check_integrity([request.pages for request in self.running])
        holding = [request.request_id for request in self.intake.queue if request.pages]
        assert not holding, f"requests wait with pages: {holding}"
        self._claims.check_integrity(self.running)

    def _release_pages(self, request: SequenceRequest, *, invalidate: bool = False) -> None:
        """Drop a request's references to pages; what it computed stays in the cache, unless it is invalid."""
        self._claims.release(request)
        if request.cursor is not None:
            if invalidate:
                self.cache.invalidate(request.cursor, request.shared_pages)
            elif request.computed:
                self.cache.insert(request.cursor, request.cache_ids, request.pages, request.computed, with_partial=True)
        request.cursor = None
        self.cache.release(request.pages)
        request.pages = []
