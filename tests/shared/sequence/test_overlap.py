"""Steps that are queued before the last one's tokens are read: the same answers as without, and no page is lost."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch
import transformers

from tessera.device.hardware import choose
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.request import PENDING, SequenceRequest
from tessera.sequence.runner.build import build_runner
from tessera.sequence.sampling import sampler
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Embed, Embedded, Failed, Generate, GeneratedTokens, Ready, Sampling

VOCABULARY = 61
PAGE = 4
PAGE_BYTES = PAGE * 2 * 8 * 4  # slots, keys and values, head dimension, bytes
ROWS = 4


class Replay:
    """Takes the place of CUDA graphs: runs the captured function once more."""

    def graph(self, run):
        run()
        return run

    def working_bytes(self, run) -> int:
        run()
        return 0


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlapped")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
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


def engine_of(directory, overlap: str, *, pages: int = 200, host: int = 0, graphs: bool = False, **changes):
    settings = SequenceEngineSettings(**({"max_batch_tokens": 24, "page_size": PAGE, "overlap": overlap} | changes))
    runner = build_runner(
        directory,
        choose("cpu", threads=1),
        page_size=PAGE,
        kv_cache_bytes=pages * PAGE_BYTES,
        host_cache_bytes=host * PAGE_BYTES,
        graph_rows=ROWS if graphs else 0,
        capture=Replay() if graphs else None,
    )
    return SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}))


def answers(engine: SequenceEngine, messages) -> dict[str, list]:
    """Submit messages and return all answers to each request, in order."""
    for message in messages:
        engine.submit(message)
    found: dict[str, list] = {}
    while engine.has_work():
        for answer in engine.step():
            found.setdefault(answer.request_id, []).append(answer)
    check(engine)
    return found


def check(engine: SequenceEngine) -> None:
    engine.scheduler.check_integrity()
    assert engine.integrity_faults == 0
    assert engine.scheduler.cache.available == engine.runner.pages
    assert not engine.requests


OPTIONS = {
    "greedy": {},
    "seeded": {"temperature": 0.9},
    "top_k": {"temperature": 0.9, "top_k": 5},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "min_p": {"temperature": 0.9, "min_p": 0.1},
    "typical": {"temperature": 0.9, "typical_p": 0.7},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {7: 3.0, 9: 2.0}},
    "logprobs": {"logprobs": 3},
    "prompt": {"prompt_logprobs": 2},
    "stops": {"stop_ids": list(range(8)), "temperature": 1.0},
}
PROMPTS = [[5, 9, 33, 7, 50], [11] * 3 + list(range(20, 50)), [60, 3], list(range(30, 47)), [60, 3, 9, 4]]


def random_messages(options: dict, count: int = 10) -> list[Generate]:
    dice = random.Random(5)
    made = []
    for index in range(count):
        sampling = Sampling(**({"max_tokens": dice.randint(1, 14), "seed": index % 4} | options))
        made.append(Generate(request_id=str(index), token_ids=PROMPTS[index % 5], sampling=sampling))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_gives_the_same_answers(directory, option):
    plain = comparable(answers(engine_of(directory, "off"), random_messages(OPTIONS[option])))
    for changes in ({"max_running": 3}, {"graphs": True, "max_batch_tokens": 3}):
        assert comparable(answers(engine_of(directory, "on", **changes), random_messages(OPTIONS[option]))) == plain, (
            changes
        )


def comparable(found: dict[str, list]) -> dict[str, list]:
    """Reduce answers to what clients compare. A step of another length rounds a logarithm's last bits differently."""

    def rounded(scores):
        return [(one.rank, *(round(value, 3) for value in (one.logprob, *dict(one.top).values()))) for one in scores]

    return {
        name: [(one.token_ids, one.finish_reason, rounded(one.scores), rounded(one.prompt_scores)) for one in some]
        for name, some in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_preemption_and_the_host_tier_change_no_answer(directory, graphs):
    many = random_messages({"temperature": 0.8, "logprobs": 1, "max_tokens": 30}, 12)
    plain = engine_of(directory, "off")
    expected = answers(plain, many)
    assert plain.scheduler.preemptions == 0
    engine = engine_of(directory, "on", pages=22, host=20, graphs=graphs)
    for _ in range(2):
        found = answers(engine, many)
        assert texts(found) == texts(expected)
    assert engine.scheduler.preemptions > 0
    assert engine.metrics()["prefix_cache_hit_tokens_host_total"] > 0


def texts(found: dict[str, list]) -> dict[str, list[int]]:
    return {name: [token for answer in some for token in answer.token_ids] for name, some in found.items()}


def test_a_step_is_queued_before_the_tokens_of_the_one_before_are_read(directory, monkeypatch):
    order = []
    read = sampler.InFlightTokens.read
    monkeypatch.setattr(sampler.InFlightTokens, "read", lambda self: (order.append("read"), read(self))[1])
    engine = engine_of(directory, "on")
    run = engine.runner.run
    monkeypatch.setattr(engine.runner, "run", lambda batch: (order.append("run"), run(batch))[1])
    answers(engine, [Generate(request_id="r", token_ids=[5, 6], sampling=Sampling(max_tokens=4))])
    # The last token is known to be the last: nothing is computed behind it.
    assert order == ["run", "run", "read", "run", "read", "run", "read", "read"]


def message(name: str, prompt: list[int], **sampling) -> list[Generate]:
    return [Generate(request_id=name, token_ids=prompt, sampling=Sampling(**({"max_tokens": 5} | sampling)))]


def test_what_is_computed_behind_a_stop_is_dropped(directory):
    text = texts(answers(engine_of(directory, "off"), message("r", [5, 6], max_tokens=12)))["r"]
    engine = engine_of(directory, "on")
    found = answers(engine, message("r", [5, 6], max_tokens=12, stop_ids=[text[3]]))["r"]
    assert [answer.token_ids[0] for answer in found] == text[: text.index(text[3]) + 1]
    assert [answer.finish_reason for answer in found] == [None] * (len(found) - 1) + ["stop"]
    assert engine.sampled_tokens == len(found)
    assert engine.steps == len(found) + 1
    # What another goes on with is what it would have computed itself.
    again = message("again", [5, 6, *text[:6]])
    assert texts(answers(engine, again)) == texts(answers(engine_of(directory, "off"), again))


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "graphs"), [(24, True), (60, False)])
def test_hundreds_of_requests_with_random_cancels_leak_no_page(directory, pages, graphs):
    dice = random.Random(11)
    engine = engine_of(directory, "on", pages=pages, host=12, graphs=graphs, max_running=6, max_waiting=1000)
    messages: dict[str, Generate | Embed] = {}
    for number in range(300):
        tokens = PROMPTS[number % 5][: dice.randint(1, 20)] + [dice.randrange(VOCABULARY) for _ in range(3)]
        if dice.random() < 0.1:
            messages[str(number)] = Embed(request_id=str(number), token_ids=tokens, tenant=dice.choice("ab"))
            continue
        sampling = Sampling(
            max_tokens=dice.randint(1, 14),
            temperature=dice.choice([0.0, 0.8]),
            top_p=dice.choice([1.0, 0.7]),
            seed=dice.randrange(100),
            stop_ids=[3, 4],
            repetition_penalty=dice.choice([1.0, 1.2]),
            prompt_logprobs=dice.choice([None, None, None, 1]),
        )
        messages[str(number)] = Generate(
            request_id=str(number),
            token_ids=tokens,
            sampling=sampling,
            priority=dice.choice([0, 5]),
            tenant=dice.choice("ab"),
            deadline_s=dice.choice([None] * 9 + [0.01]),
        )
    waiting, open_, found, left = list(messages.values()), set(), {}, set()
    while waiting or engine.has_work():
        for _ in range(dice.randint(0, 3)):
            if waiting:
                open_.add(waiting[-1].request_id)
                engine.submit(waiting.pop())
        if open_ and dice.random() < 0.2:
            gone = dice.choice(sorted(open_))
            open_.discard(gone)
            left.add(gone)
            engine.cancel(gone)
        for answer in engine.step():
            assert answer.request_id in open_, "an answer after the end"
            assert not isinstance(answer, GeneratedTokens) or PENDING not in answer.token_ids
            found.setdefault(answer.request_id, []).append(answer)
            if not isinstance(answer, GeneratedTokens) or answer.finish_reason is not None:
                open_.discard(answer.request_id)
            if isinstance(answer, Failed):
                assert answer.error.code == "deadline_exceeded"
                left.add(answer.request_id)
    assert not open_
    check(engine)
    assert engine.scheduler.preemptions > 0 or pages > 24
    assert len(left) > 20
    patient = [msgspec.structs.replace(message, deadline_s=None) for message in messages.values()]
    plain = answers(engine_of(directory, "off", max_waiting=1000), patient)
    for name, some in plain.items():
        if isinstance(some[0], Embedded):
            assert name in left or len(found[name]) == 1
            continue
        tokens = [token for answer in some for token in answer.token_ids]
        got = [
            token for answer in found.get(name, []) if isinstance(answer, GeneratedTokens) for token in answer.token_ids
        ]
        assert got == (tokens[: len(got)] if name in left else tokens)


def test_a_step_that_fails_ends_its_requests_after_what_was_drawn_before(directory, monkeypatch):
    engine = engine_of(directory, "on")
    engine.submit(*message("unlucky", PROMPTS[0]))
    assert list(engine.step()) == []
    with monkeypatch.context() as patched:
        patched.setattr(engine.runner, "run", lambda _: (_ for _ in ()).throw(RuntimeError("out of memory")))
        first, second = engine.step()
    assert isinstance(first, GeneratedTokens)
    assert isinstance(second, Failed)
    check(engine)
    expected = answers(engine_of(directory, "off"), message("next", PROMPTS[0]))
    assert texts(answers(engine, message("next", PROMPTS[0]))) == texts(expected)


def test_tokens_that_cannot_be_read_end_their_requests_and_leave_the_engine(directory, monkeypatch):
    engine = engine_of(directory, "on")
    engine.submit(*message("unlucky", PROMPTS[0]))
    engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(sampler.InFlightTokens, "read", lambda _: (_ for _ in ()).throw(RuntimeError("lost")))
        (answer,) = engine.step()
    assert isinstance(answer, Failed)
    assert not list(engine.step())
    check(engine)
    engine.submit(*message("lost", PROMPTS[0]))
    engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(
            sampler.InFlightTokens, "read", lambda _: (_ for _ in ()).throw(RuntimeError("CUDA error: lost"))
        )
        with pytest.raises(RuntimeError, match="CUDA error"):  # only a new process helps
            engine.step()


def test_a_pinned_prompt_is_in_the_cache_before_others_can_take_its_pages(directory):
    engine = engine_of(directory, "on", pages=40)
    prompt = list(range(10, 26))
    engine.submit(Generate(request_id="p", token_ids=prompt, sampling=Sampling(max_tokens=3), pin=True))
    first, second = list(engine.step()), list(engine.step())
    assert (first, engine.scheduler.cache.pinned) == ([], 4)
    assert [answer.token_ids for answer in second]
    while engine.has_work():
        engine.step()
    engine.scheduler.check_integrity()
    assert engine.scheduler.cache.available == 36


def test_drafts_need_the_tokens_at_once_so_steps_do_not_overlap(directory, caplog):
    caplog.set_level("INFO")
    engine = engine_of(directory, "on", speculation="ngram")
    assert not engine.overlaps
    assert "steps do not overlap: draft tokens" in caplog.text
    assert not engine_of(directory, "auto").overlaps
    engine.runner.asynchronous = True
    runner, settings = engine.runner, SequenceEngineSettings(page_size=PAGE)
    assert SequenceEngine(runner, settings, Ready(device="cuda", cards=[], directories=[], report={})).overlaps


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("option", OPTIONS)
def test_on_a_gpu_overlapped_steps_of_graphs_answer_as_single_ones_do(directory, option):
    found = []
    for overlap, rows in (("off", 0), ("on", 0), ("on", ROWS)):
        runner = build_runner(
            directory, choose("cuda", dtype="float32"), page_size=16, kv_cache_bytes=1 << 22, graph_rows=rows
        )
        engine = SequenceEngine(
            runner,
            SequenceEngineSettings(overlap=overlap),
            Ready(device="cuda", cards=[], directories=[], report={}),
        )
        found.append(texts(answers(engine, random_messages(OPTIONS[option]))))
    assert found[1:] == found[:1] * 2
    assert runner.graph_steps > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_greedy_tokens_are_drawn_without_waiting(directory):
    logits_RV = torch.randn(3, VOCABULARY, device="cuda")
    requests = [SequenceRequest(str(row), [1], Sampling(max_tokens=2, temperature=row / 2)) for row in range(3)]
    sampler.start_sampling(logits_RV, requests)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn_now = sampler.start_sampling(logits_RV, requests)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert drawn_now.read()[0].token_id == int(logits_RV[0].argmax())
