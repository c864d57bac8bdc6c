"""The scheduler as a policy: budgets hold, pages are never lost, everything that is admitted ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.errors import ContextLengthError, OverloadedError
from tessera.sequence.request import SequenceRequest
from tessera.sequence.scheduler import Scheduler
from tessera.wire.engine import Sampling


def scheduler(pages=8, page_size=4, budget=8, running=4, waiting=100, context=1000, shares=True, host=0) -> Scheduler:
    return Scheduler(
        PrefixCache(PageAllocator(pages, page_size), host_slots=host, enabled=shares),
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=waiting,
        context_length=context,
    )


def request(name: str, prompt: int, output: int, first: int = 0, **fields) -> SequenceRequest:
    """Make a request whose prompt is `first`, then a count from one up: the same `first` means a common beginning."""
    return SequenceRequest(name, [first, *range(1, prompt)], Sampling(max_tokens=output), **fields)


def step(policy: Scheduler) -> list[str]:
    """Compute a batch with a model whose next token is always 0; return the ids of requests that ended."""
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
            chunk.request.append(0)
            if chunk.request.output_length >= chunk.request.sampling.max_tokens:
                policy.remove(chunk.request)
                ended.append(chunk.request.request_id)
    policy.check_integrity()
    return ended


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 20),
            st.integers(1, 12),
            st.integers(0, 1),
            st.integers(0, 2),
            st.sampled_from(["", "a", "b"]),
        ),
        min_size=1,
        max_size=10,
    ),
    cancels=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=3),
    budget=st.integers(1, 16),
    running=st.integers(1, 5),
    pages=st.integers(8, 12),
    shares=st.booleans(),
    host=st.integers(0, 4),
)
def test_every_request_ends_and_no_page_is_lost(requests, cancels, budget, running, pages, shares, host):
    policy = scheduler(pages=pages, budget=budget, running=running, shares=shares, host=host)
    made = [
        request(str(index), prompt, output, first, priority=priority, tenant=tenant)
        for index, (prompt, output, first, priority, tenant) in enumerate(requests)
    ]
    for one in made:
        policy.submit(one)
    ended: list[str] = []
    for at in range(5000):
        for when, which in cancels:
            if when == at and which < len(made) and made[which].request_id not in ended:
                policy.remove(made[which])
                ended.append(made[which].request_id)
        if not policy.has_work():
            break
        ended += step(policy)
    assert sorted(ended) == sorted(one.request_id for one in made)
    assert policy.cache.available == pages
    assert policy.check_integrity() is None


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
                chunk.request.append(0)


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
        for waiting in policy.intake.queue:
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


def finish(policy: Scheduler) -> list[str]:
    ended: list[str] = []
    while policy.has_work():
        ended += step(policy)
    return ended


def test_a_known_prefix_is_not_computed_again():
    policy = scheduler(pages=32, budget=64)
    policy.submit(request("first", 17, 3))
    finish(policy)
    again = request("again", 17, 3)
    policy.submit(again)
    batch = policy.schedule()
    assert [(chunk.start, chunk.count) for chunk in batch.chunks] == [(16, 1)]
    assert again.cached_tokens == 16


def test_the_same_prompt_at_once_is_computed_once():
    policy = scheduler(pages=64, budget=6, running=4)
    choices = [request(str(index), 21, 2) for index in range(4)]
    for choice in choices:
        policy.submit(choice)
    computed = 0
    while policy.has_work():
        before = policy.schedule()
        computed += before.tokens
        policy.advance(before)
        for chunk in before.chunks:
            if chunk.completes:
                chunk.request.append(0)
                if chunk.request.output_length == 2:
                    policy.remove(chunk.request)
        policy.check_integrity()
    # 21 once, the last position of each other, and one more step of each.
    assert computed == 21 + 3 + 4


def test_who_waits_for_a_page_computes_it_when_the_other_leaves():
    policy = scheduler(pages=64, budget=4, running=4)
    first, second = request("first", 21, 2), request("second", 21, 2)
    policy.submit(first)
    policy.submit(second)
    step(policy)
    assert second in policy.intake.queue
    policy.remove(first)
    assert finish(policy) == ["second"]
    assert second.cached_tokens == 4


def test_a_lower_number_goes_first_and_takes_the_place_of_a_higher_one():
    policy = scheduler(pages=64, budget=64, running=1)
    policy.submit(request("later", 4, 9, first=1, priority=5))
    step(policy)
    policy.submit(request("soon", 4, 2, first=2, priority=0))
    policy.submit(request("sooner", 4, 2, first=3, priority=-1))
    assert finish(policy) == ["sooner", "soon", "later"]
    assert policy.preemptions == 1


def test_a_tenant_with_many_requests_does_not_keep_another_waiting():
    policy = scheduler(pages=64, budget=64, running=1)
    for index in range(6):
        policy.submit(request(f"many-{index}", 8, 4, first=100 + index, tenant="many"))
    policy.submit(request("one", 8, 4, first=1, tenant="one"))
    assert finish(policy).index("one") == 1


def test_absence_saves_nothing_up():
    policy = scheduler(pages=64, budget=64, running=1)
    for index in range(8):
        policy.submit(request(f"steady-{index}", 8, 4, first=100 + index, tenant="steady"))
    for _ in range(9):
        step(policy)
    for index in range(3):
        policy.submit(request(f"back-{index}", 8, 4, first=index, tenant="back"))
    order = "".join(name[0] for name in finish(policy))
    assert "bb" not in order, "whoever comes back shares, it is not served alone"
    assert "sss" not in order[: order.rindex("b")], "and is not kept waiting"


def test_deadlines_are_seen_whether_a_request_waits_or_runs():
    policy = scheduler(running=1)
    runs, waits = request("runs", 4, 9, deadline=10.0), request("waits", 4, 9, first=1, deadline=20.0)
    policy.submit(runs)
    policy.submit(waits)
    step(policy)
    assert policy.expired(9.0) == []
    assert policy.expired(11.0) == [runs]
    assert policy.expired(21.0) == [runs, waits]


def test_what_was_spoiled_is_not_used_again():
    policy = scheduler(pages=32, budget=64)
    good = request("good", 9, 1)
    policy.submit(good)
    finish(policy)
    spoiled = SequenceRequest("spoiled", [*range(9), 50, 51, 52, 53, 54], Sampling(max_tokens=4))
    policy.submit(spoiled)
    step(policy)
    policy.remove(spoiled, invalidate=True)
    policy.check_integrity()
    again = SequenceRequest("again", [*range(9), 50, 51, 52, 53, 54], Sampling(max_tokens=4))
    policy.submit(again)
    policy.schedule()
    assert again.cached_tokens == 9  # of the good one alone


def test_a_spoiled_request_whose_cache_was_forgotten_ends_like_others():
    policy = scheduler(pages=32, budget=64)
    policy.submit(request("good", 17, 1))
    finish(policy)
    spoiled = request("spoiled", 17, 4)
    policy.submit(spoiled)
    policy.schedule()
    policy.clear_cache()
    policy.remove(spoiled, invalidate=True)
    policy.check_integrity()
    assert policy.cache.available == 32


def test_forgetting_the_cache_leaves_what_runs_alone():
    policy = scheduler(pages=16, budget=6)
    policy.submit(request("a", 14, 6))
    policy.submit(request("b", 14, 6))
    for _ in range(3):
        step(policy)
    policy.clear_cache()
    policy.check_integrity()
    assert sorted(finish(policy)) == ["a", "b"]
    assert policy.cache.available == 16


def test_pages_of_sequences_lie_in_order_round_after_round():
    policy = scheduler(pages=64, budget=64)
    for number in range(12):
        running = [request(f"{number}-{index}", 13, 16, first=100 + 4 * number + index) for index in range(4)]
        for one in running:
            policy.submit(one)
        while policy.has_work():
            step(policy)
            for one in running:
                neighbours = sum(page + 1 == following for page, following in itertools.pairwise(one.pages))
                assert neighbours >= len(one.pages) - 2, f"round {number}: {one.pages}"
    assert policy.cache.evicted_pages > 0


def test_room_to_grow_costs_no_large_part_of_what_is_kept():
    policy = scheduler(pages=64, budget=64)
    for number in range(8):
        policy.submit(request(f"{number}", 13, 16, first=100 + number))
        while policy.has_work():
            step(policy)
    kept = policy.cache.cached_pages
    assert kept == 56
    policy.submit(request("long", 5, 200, first=99))
    step(policy)
    assert 0 < policy.cache.evicted_pages <= 8
    policy.submit(again := request("again", 13, 1, first=107))
    step(policy)
    assert again.cached_tokens == 12
