"""The scheduler as a policy: budgets hold, pages are never lost, everything that is admitted ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.cache.pages import PageAllocator
from tessera.engine.scheduler import Scheduler
from tessera.engine.sequence_request import SequenceRequest
from tessera.errors import ContextLengthError, OverloadedError
from tessera.wire.engine import Sampling


def scheduler(pages=8, page_size=4, budget=8, running=4, waiting=100, context=1000) -> Scheduler:
    return Scheduler(
        PageAllocator(pages, page_size),
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=waiting,
        context_length=context,
    )


def request(name: str, prompt: int, output: int) -> SequenceRequest:
    return SequenceRequest(name, list(range(prompt)), Sampling(max_tokens=output))


def step(policy: Scheduler) -> list[str]:
    """Compute a batch with a model that always says 0; returns who ended."""
    batch = policy.schedule()
    assert batch.tokens <= policy.max_batch_tokens
    assert len(policy.running) <= policy.max_running
    for chunk in batch.chunks:
        assert chunk.start == chunk.request.computed
        assert len(chunk.request.pages) * policy.allocator.page_size >= chunk.start + chunk.count
    policy.advance(batch)
    ended = []
    for chunk in batch.chunks:
        if chunk.completes:
            chunk.request.token_ids.append(0)
            if chunk.request.output_length >= chunk.request.sampling.max_tokens:
                policy.remove(chunk.request)
                ended.append(chunk.request.request_id)
    policy.check_integrity()
    return ended


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=10),
    budget=st.integers(1, 16),
    running=st.integers(1, 5),
    pages=st.integers(8, 12),
)
def test_every_request_ends_and_no_page_is_lost(lengths, budget, running, pages):
    policy = scheduler(pages=pages, budget=budget, running=running)
    for index, (prompt, output) in enumerate(lengths):
        policy.submit(request(str(index), prompt, output))
    ended: list[str] = []
    for _ in range(5000):
        if not policy.has_work():
            break
        ended += step(policy)
    assert sorted(ended) == sorted(str(index) for index in range(len(lengths)))
    assert policy.allocator.free == pages


def test_decodes_are_not_starved_by_a_long_prefill():
    policy = scheduler(pages=64, budget=4)
    policy.submit(request("short", 1, 50))
    step(policy)
    policy.submit(request("long", 60, 1))
    for _ in range(10):
        batch = policy.schedule()
        assert "short" in {chunk.request.request_id for chunk in batch.chunks}
        policy.advance(batch)
        for chunk in batch.chunks:
            if chunk.completes:
                chunk.request.token_ids.append(0)


def test_the_request_that_computed_least_is_preempted_and_keeps_its_tokens():
    policy = scheduler(pages=4, page_size=4, budget=16)
    policy.submit(request("old", 8, 8))
    policy.submit(request("young", 3, 9))
    step(policy)
    seen_preempted = False
    ended: list[str] = []
    before: dict[str, list[int]] = {}
    while policy.has_work():
        before |= {r.request_id: list(r.token_ids) for r in policy.running}
        ended += step(policy)
        for waiting in policy.waiting:
            seen_preempted = True
            assert waiting.request_id == "young"
            assert waiting.token_ids[: len(before["young"])] == before["young"]
    assert seen_preempted
    assert ended == ["old", "young"]


def test_an_embedding_that_takes_every_page_is_computed():
    policy = scheduler(pages=2, page_size=4)
    policy.submit(SequenceRequest("whole", list(range(8)), None))
    batch = policy.schedule()
    assert [(chunk.start, chunk.count) for chunk in batch.chunks] == [(0, 8)]


def test_what_can_never_fit_is_refused_at_once_with_the_numbers():
    policy = scheduler(pages=2, page_size=4)
    with pytest.raises(ContextLengthError, match=r"6 prompt tokens and 3 output tokens are 9 together.*at most 8"):
        policy.submit(request("big", 6, 3))


def test_a_full_queue_is_an_overload_with_a_time_to_come_back():
    policy = scheduler(waiting=1)
    policy.submit(request("a", 1, 1))
    with pytest.raises(OverloadedError) as caught:
        policy.submit(request("b", 1, 1))
    assert caught.value.retry_after
