"""The sequence scheduler: one token budget per step, decodes first, prefill in chunks, admission by pages.

When pages run out, the request that has computed least gives its pages back and is computed again later; its tokens
are kept. Does not know tensors: it decides which positions of which request are computed next.
"""

from __future__ import annotations

from collections import deque

from tessera.cache.pages import PageAllocator
from tessera.engine.batch import Batch, Chunk
from tessera.engine.sequence_request import SequenceRequest
from tessera.errors import ContextLengthError, OverloadedError


class Scheduler:
    """Queues, running set and pages of one sequence engine."""

    def __init__(
        self,
        allocator: PageAllocator,
        *,
        max_batch_tokens: int,
        max_running: int,
        max_waiting: int,
        context_length: int,
    ) -> None:
        self.allocator = allocator
        self.max_batch_tokens = max_batch_tokens
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.context_length = min(context_length, allocator.pages * allocator.page_size)
        self.waiting: deque[SequenceRequest] = deque()
        self.running: list[SequenceRequest] = []
        self.preemptions = 0

    def check(self, request: SequenceRequest, *, ahead: int = 0) -> None:
        """Say why a request cannot be queued, if so. No side effect.

        Args:
            request: the one in question.
            ahead: requests that will be queued before it.

        Raises:
            OverloadedError: the queue is full.
            ContextLengthError: it could never fit, even alone.
        """
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

    def submit(self, request: SequenceRequest) -> None:
        """Queue a request. Raises what `check` raises."""
        self.check(request)
        self.waiting.append(request)

    def remove(self, request: SequenceRequest) -> None:
        """Take a request out (ended or cancelled) and free its pages."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    def schedule(self) -> Batch:
        """Choose the next step's chunks and give them their pages."""
        budget = self.max_batch_tokens
        chunks: dict[SequenceRequest, Chunk] = {}
        # Decodes (one position left) before prefills, older before younger.
        for request in sorted(self.running, key=lambda r: (r.remaining > 1, r.arrival)):
            if budget == 0:
                break
            if request not in self.running:  # preempted by an earlier one of this loop
                continue
            count = min(request.remaining, budget)
            if not self._make_room(request, count, scheduled=chunks):
                continue
            chunks[request] = Chunk(request, request.computed, count)
            budget -= count
        while self.waiting and budget > 0 and self._can_admit(self.waiting[0]):
            request = self.waiting.popleft()
            self.running.append(request)
            # All pages of the prompt at once: chunks of two half-admitted prompts would evict each other.
            self._grow(request, request.remaining)
            count = min(request.remaining, budget)
            chunks[request] = Chunk(request, request.computed, count)
            budget -= count
        return Batch(list(chunks.values()))

    def advance(self, batch: Batch) -> None:
        """Note that a batch has been computed."""
        for chunk in batch.chunks:
            chunk.request.computed = chunk.start + chunk.count

    def check_integrity(self) -> None:
        """The pages of all requests are exactly the used ones. Run when idle and in tests."""
        self.allocator.check_integrity()
        held = [page for request in (*self.running, *self.waiting) for page in request.pages]
        assert len(set(held)) == self.allocator.used, f"{self.allocator.used} pages used, {len(set(held))} held"

    def _can_admit(self, request: SequenceRequest) -> bool:
        """Room for all it has so far and the token it samples next, so that it is not preempted at once."""
        positions = len(request.token_ids) + (1 if request.sampling else 0)
        return len(self.running) < self.max_running and self.allocator.can_allocate(self.allocator.pages_for(positions))

    def _missing(self, request: SequenceRequest, count: int) -> int:
        return max(0, self.allocator.pages_for(request.computed + count) - len(request.pages))

    def _grow(self, request: SequenceRequest, count: int) -> None:
        request.pages += self.allocator.allocate(self._missing(request, count))

    def _make_room(self, request: SequenceRequest, count: int, scheduled: dict[SequenceRequest, Chunk]) -> bool:
        """Get the pages for a chunk, preempting others that computed less. False when `request` itself had to go."""
        while not self.allocator.can_allocate(self._missing(request, count)):
            candidates = [other for other in self.running if other not in scheduled]
            victim = min(candidates, key=lambda r: (r.computed, -r.arrival))
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
        self.waiting.appendleft(request)

    def _release(self, request: SequenceRequest) -> None:
        self.allocator.release(request.pages)
        request.pages = []
