"""Fair shares among running requests: newcomers are served at once, and nobody holds too much while others wait."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.waiting import until

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.device.hardware import choose
from tessera.errors import OverloadedError
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.intake import Intake
from tessera.sequence.request import RequestState, SequenceRequest
from tessera.sequence.runner.build import build_runner
from tessera.sequence.scheduler import Scheduler
from tessera.sequence.shares import TURN_TOKENS, Holdings, divide, gives_slot, is_newcomer
from tessera.sequence.speculation.draft_model import DraftModel
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Generate, GeneratedTokens, Grammar, Ready, Sampling


def scheduler(pages=4096, page_size=16, budget=512, running=32, waiting=256) -> Scheduler:
    return Scheduler(
        PrefixCache(PageAllocator(pages, page_size), enabled=True),
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=waiting,
        context_length=8192,
    )


def request(tenant: str, number: int, prompt: int, output: int, **fields) -> SequenceRequest:
    """Make a request that shares no prefix with others."""
    first = hash((tenant, number)) % (1 << 30)
    ids = [first, *range(1, prompt)]
    return SequenceRequest(f"{tenant}-{number}", ids, Sampling(max_tokens=output), tenant=tenant, **fields)


def step(policy: Scheduler) -> dict[str, int]:
    """Compute a batch with a model whose next token is always 0. Returns the tokens computed for each tenant."""
    batch = policy.schedule()
    assert batch.tokens <= policy.max_batch_tokens
    assert len(policy.running) <= policy.max_running
    assert batch.tokens > 0 or not policy.has_work()
    policy.advance(batch)
    computed: Counter[str] = Counter()
    for chunk in batch.chunks:
        computed[chunk.request.tenant] += chunk.count
        if chunk.completes:
            chunk.request.append(0)
            if chunk.request.is_full:
                policy.remove(chunk.request)
    return computed


def steps_to_first_token(policy: Scheduler, one: SequenceRequest) -> int:
    policy.submit(one)
    for steps in range(1, 5000):
        step(policy)
        if one.output_length:
            return steps
    raise AssertionError("it waits still")


@pytest.mark.parametrize("pages", [16384, 1456])  # room for all, and what a starter's cache has
def test_sixty_long_streams_of_one_key_do_not_delay_the_first_token_of_another(pages):
    policy = scheduler(pages=pages)
    for number in range(60):
        policy.submit(request("many", number, 20, 4000))
    for _ in range(300):
        step(policy)
    assert len(policy.running) == 32
    for number in range(5):
        one = request("new", number, 30, 5)
        assert steps_to_first_token(policy, one) == 1, "its first token comes with the next step"
        while one.state is not RequestState.ENDED:
            step(policy)
        assert one.preemptions == 0
        policy.check_integrity()
    assert policy.fair_preemptions <= 5, "one gives way to each newcomer"


def test_a_crowd_of_every_priority_does_not_delay_who_asks_for_none():
    policy = scheduler()
    for number in range(60):
        policy.submit(request("many", number, 20, 4000, priority=number % 5))
    for _ in range(100):
        step(policy)
    for number in range(5):
        one = request("new", number, 30, 5)
        assert steps_to_first_token(policy, one) == 1
        while one.state is not RequestState.ENDED:
            step(policy)
        assert one.preemptions == 0


def test_the_first_token_comes_without_the_decodes_of_a_crowd_beside_it():
    policy = scheduler()
    for number in range(60):
        policy.submit(request("many", number, 20, 4000))
    for _ in range(10):
        step(policy)
    policy.submit(request("new", 0, 30, 5))
    assert step(policy) == {"new": 30}
    after = step(policy)
    assert after == {"new": 1, "many": 31}


def test_who_sends_short_prompts_without_end_gets_no_more_than_the_others():
    policy = scheduler()
    for number in range(40):
        policy.submit(request("streams", number, 20, 4000))
    for _ in range(5):
        step(policy)
    total: Counter[str] = Counter()
    number = 0
    for _ in range(400):
        while sum(one.tenant == "prompts" for one in (*policy.running, *policy.intake.queue)) < 8:
            policy.submit(request("prompts", number, 200, 1))
            number += 1
        total.update(step(policy))
    # With 24 slots left, the streams could decode 24 tokens in every step that is not another's own.
    assert total["streams"] > 0.9 * 24 * 400, total


def test_a_long_prompt_shares_each_step_with_the_prompts_of_others():
    policy = scheduler(budget=512)
    for number in range(30):
        policy.submit(request("many", number, 2000, 10))
    step(policy)
    one = request("new", 0, 1500, 5)
    policy.submit(one)
    given_tokens = [step(policy)["new"] for _ in range(6)]
    assert min(given_tokens[:5]) >= 200, given_tokens
    assert one.output_length >= 1, given_tokens


def test_one_tenant_alone_is_never_preempted_for_shares_and_uses_everything():
    policy = scheduler(running=8)
    for number in range(20):
        policy.submit(request("", number, 50, 30))
    steps = 0
    while policy.has_work():
        assert sum(step(policy).values()) >= min(8, len(policy.running))
        steps += 1
    assert (policy.fair_preemptions, policy.preemptions) == (0, 0)
    # The work of a scheduler without shares: 20 requests in 8 slots are three rounds of a prompt and its answer.
    assert steps <= 3 * 30 + 3


def test_slots_go_to_who_holds_fewer_until_both_hold_the_same():
    policy = scheduler(running=8)
    for number in range(20):
        policy.submit(request("first", number, 8, 500))
    for _ in range(3):
        step(policy)
    for number in range(20):
        policy.submit(request("second", number, 8, 500))
    for _ in range(3):
        step(policy)
    assert Holdings(policy.running).slots == {"first": 4, "second": 4}
    assert policy.fair_preemptions == 4
    for _ in range(100):
        step(policy)
    assert policy.fair_preemptions == 4, "what is equal is not exchanged back and forth"


def test_pages_go_to_who_holds_fewer():
    policy = scheduler(pages=64, page_size=4, running=32, budget=256)
    for number in range(8):
        policy.submit(request("first", number, 28, 200))
    for _ in range(3):
        step(policy)
    assert policy.cache.available < 8
    for number in range(3):
        policy.submit(request("second", number, 20, 200))
    step(policy)
    held = Holdings(policy.running)
    assert held.slots["second"] >= 2
    for _ in range(60):
        step(policy)
        policy.check_integrity()
        held = Holdings(policy.running)
        assert held.slots["first"], "both run"
        assert held.slots["second"], "both run"


def test_nobody_is_preempted_in_vain_for_a_request_that_does_not_fit_into_a_share():
    policy = scheduler(pages=64, page_size=4, running=32, budget=256)
    for number in range(8):
        policy.submit(request("first", number, 28, 100))
    step(policy)
    policy.submit(request("second", 0, 200, 2))  # 50 of 64 pages
    step(policy)
    assert policy.fair_preemptions == 0
    while policy.has_work():
        step(policy)
    policy.check_integrity()


def test_tenants_take_turns_where_there_is_one_slot():
    policy = scheduler(running=1)
    long, other = request("first", 0, 8, 2000), request("second", 0, 8, 2000)
    policy.submit(long)
    step(policy)
    policy.submit(other)
    progress = []
    while policy.has_work():
        step(policy)
        progress.append(abs(long.output_length - other.output_length))
        if RequestState.ENDED in {long.state, other.state}:
            break
    assert max(progress) <= TURN_TOKENS
    assert 2 <= policy.fair_preemptions <= 2 * 4000 / TURN_TOKENS + 2


def test_a_tenant_does_not_displace_a_higher_priority():
    policy = scheduler(running=4)
    for number in range(6):
        policy.submit(request("urgent", number, 8, 50, priority=-1))
    step(policy)
    policy.submit(request("new", 0, 8, 2))
    for _ in range(40):
        assert step(policy)["new"] == 0
    assert policy.fair_preemptions == 0


def test_a_higher_priority_still_takes_its_place_and_the_whole_step():
    policy = scheduler(running=4, budget=64)
    for number in range(4):
        policy.submit(request(f"tenant-{number}", 0, 200, 50))
    step(policy)
    policy.submit(request("urgent", 0, 64, 3, priority=-1))
    assert step(policy) == {"urgent": 64}


def test_whoever_gave_way_goes_on_where_it_was():
    policy = scheduler(running=2)
    first = [request("many", number, 20, 60) for number in range(2)]
    for one in first:
        policy.submit(one)
    for _ in range(30):
        step(policy)
    written = list(first[1].token_ids)
    assert steps_to_first_token(policy, request("new", 0, 8, 3)) == 1
    assert first[1].state is RequestState.WAITING
    assert first[1].token_ids == written
    for _ in range(3):
        step(policy)
    assert first[1].state is RequestState.RUNNING
    assert first[1].computed >= len(written) - 1, "its pages were kept, and it is not computed again"


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from("abcd"), st.integers(1, 40), st.integers(1, 40)),
        min_size=2,
        max_size=24,
    ),
    running=st.integers(1, 6),
    budget=st.integers(2, 40),
    pages=st.integers(24, 200),
)
def test_no_tenant_holds_more_slots_than_its_share_while_another_waits(arrivals, running, budget, pages):
    policy = scheduler(pages=pages, page_size=4, running=running, budget=budget)
    made = [(at, request(tenant, number, *sizes)) for number, (at, tenant, *sizes) in enumerate(arrivals)]
    for now in range(4000):
        for at, one in made:
            if at == now:
                policy.submit(one)
        if now > 30 and not policy.has_work():
            break
        step(policy)
        policy.check_integrity()
        if len(policy.running) < policy.max_running:
            continue  # pages are short, not slots
        held = Holdings(policy.running)
        for waiting in policy.intake.queue.first_of_lines():
            if waiting.preemptions or not is_newcomer(waiting, held):
                continue
            gives = [one for one in policy.running if gives_slot(one, waiting, held, lambda _: 0.0)]
            fits = policy._admission.lacking_pages(waiting, policy._admission.match(waiting)) <= 0
            assert not (gives and fits), (held.slots, waiting.tenant)
    assert all(one.state is RequestState.ENDED for _, one in made), "everybody ends"
    assert len({one.tenant for _, one in made}) > 1 or policy.fair_preemptions == 0


@given(
    budget=st.integers(0, 600),
    demands=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 400), min_size=1),
)
def test_a_budget_is_divided_without_loss_and_nobody_gets_less_than_an_equal_share(budget, demands):
    shares = divide(budget, demands, ord)
    assert sum(shares.values()) == min(budget, sum(demands.values()))
    for tenant, share in shares.items():
        assert share <= demands[tenant]
        assert share >= min(demands[tenant], budget // len(demands))


def test_a_full_waiting_room_still_takes_who_has_less_than_a_share():
    policy = scheduler(running=1, waiting=8)
    step(policy)
    for number in range(8):
        policy.submit(request("many", number, 8, 5))
    with pytest.raises(OverloadedError):
        policy.submit(request("many", 8, 8, 5))
    for number in range(4):
        policy.submit(request("new", number, 8, 5))
    with pytest.raises(OverloadedError):
        policy.submit(request("new", 4, 8, 5))
    taken = 0
    for number in range(50):
        try:
            policy.submit(request(f"other-{number}", 0, 8, 5))
            taken += 1
        except OverloadedError:
            break
    assert len(policy.intake) <= 16, "however many tenants there are"
    assert taken == 4


def test_images_of_one_tenant_do_not_keep_another_from_the_encoder():
    intake = Intake(100)
    for number in range(20):
        intake.hold(request("many", number, 4, 1), RequestState.AWAITING_ENCODER, {})
    ready = intake.take_first(RequestState.AWAITING_ENCODER)[0]
    intake.queue.enter(ready)
    intake.enqueue(ready)
    intake.hold(request("new", 0, 4, 1), RequestState.AWAITING_ENCODER, {})
    assert intake.take_first(RequestState.AWAITING_ENCODER)[0].tenant == "new"


def test_grammars_of_one_tenant_do_not_keep_another_from_the_compiler():
    gate, order = threading.Event(), []

    class Recording:
        def compile(self, grammar: Grammar):
            gate.wait(10)
            order.append(grammar.source)
            return object

    grammars = GrammarQueue(Recording, vocabulary=8, stop_ids=[0], timeout_s=10)
    for number in range(12):
        grammars.start(f"many-{number}", Grammar(kind="regex", source=f"many-{number}", param="regex"), "many")
    grammars.start("new", Grammar(kind="regex", source="new", param="regex"), "new")
    gate.set()
    until(lambda: len(order) == 13, what="all compilations")
    assert order.index("new") <= 4, order  # behind those that had begun, and one of each thread's


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=96,
        initializer_range=0.4,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"overlap": "off"}, {"overlap": "on"}, {"speculation": "ngram"}, {"speculation": "draft"}]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"stop_ids": [7, 20, 31], "held_ids": [7, 20, 31], "min_tokens": 4, "banned": [[12], [15, 9]]},
        {"temperature": 0.9, "allowed_ids": list(range(5, 40)), "repetition_penalty": 1.2},
    ],
)
def test_giving_way_changes_no_token(directory, changes, options, monkeypatch):
    drafts = changes.get("speculation") == "draft"

    def answers(tenants: bool) -> tuple[dict[str, list[int]], SequenceEngine]:
        chosen = SequenceEngineSettings(
            **(
                {"max_batch_tokens": 24, "page_size": 4, "max_running": 4 if tenants else 32}
                | ({} if drafts else changes)
            )
        )
        runner = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=400 * 256)
        drafter = None
        if drafts:
            other = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=400 * 256)
            drafter = DraftModel(other, max_tokens=24, vocabulary=61)
        ready = Ready(device="cpu", cards=[], directories=[], report={})
        engine = SequenceEngine(runner, chosen, ready, drafter=drafter)
        if drafts:  # whether it pays is measured, and on tiny models it never does
            monkeypatch.setattr(engine.speculation, "_pays", lambda *_: True)
        found: dict[str, list[int]] = {}

        def take() -> None:
            for answer in engine.step():
                assert isinstance(answer, GeneratedTokens), answer
                found.setdefault(answer.request_id, []).extend(answer.token_ids)

        for number in range(14):
            tenant = "many" if number < 8 else f"new-{number % 2}"
            sampling = Sampling(**({"max_tokens": 25 if number < 8 else 5, "seed": number} | options))
            ids = [3 + number, *range(10, 10 + 3 * (number % 4))]
            engine.submit(
                Generate(
                    request_id=str(number), token_ids=ids, sampling=sampling, tenant=tenant if tenants else "", media={}
                )
            )
            if number >= 8:
                for _ in range(4):
                    take()
        while engine.has_work():
            take()
        engine.scheduler.check_integrity()
        return found, engine

    plain, _ = answers(tenants=False)
    shared, engine = answers(tenants=True)
    assert engine.scheduler.fair_preemptions > 0
    assert shared == plain
    if drafts:
        assert engine.metrics()["draft_tokens_total"] > 0
        assert engine.speculation.drafter.allocator.used == 0, "the pages of drafts came back"
