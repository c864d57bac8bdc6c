"""Grammars inside the sequence engine: no request waits for another's grammar, and a wrong one ends one request."""

from __future__ import annotations

import json
import re
import threading

import msgspec
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tessera.device.hardware import choose
from tessera.errors import OverloadedError
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.grammar.backends import compiler_for
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.build import build_runner
from tessera.sequence.sampling.sampler import sample
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Failed, Generate, GeneratedTokens, Grammar, Ready, Sampling

STOP, SIZE = 256, 260


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny random Llama over bytes."""
    directory = tmp_path_factory.mktemp("llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("</s>", special=True)])
    fast.save(str(directory / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=STOP,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


class Gated:
    """A compiler that waits for a gate, if the grammar is "slow"."""

    def __init__(self, directory) -> None:
        self.inner = compiler_for("xgrammar", directory, SIZE)
        self.gate = threading.Event()

    def compile(self, grammar: Grammar):
        if grammar.source == "slow":
            assert self.gate.wait(20)
        return self.inner.compile(grammar)


@pytest.fixture
def gated(directory):
    return Gated(directory)


@pytest.fixture(params=["off", "on"])
def engine(directory, gated, request):
    settings = SequenceEngineSettings(max_waiting=3, kv_cache_bytes=1 << 20, overlap=request.param)
    runner = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=1 << 20)
    grammars = GrammarQueue(lambda: gated, vocabulary=SIZE, stop_ids=[STOP], timeout_s=5)
    return SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}), grammars)


def generate(name: str, pattern: str | None = None, **sampling) -> Generate:
    grammar = None if pattern is None else Grammar(kind="regex", source=pattern, param="regex")
    own = Sampling(
        **({"max_tokens": 20, "temperature": 1.0, "seed": 3, "stop_ids": [STOP]} | sampling), grammar=grammar
    )
    return Generate(request_id=name, token_ids=[5, 9, 33], sampling=own)


def text(tokens: list[int]) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return "".join(alphabet[token] for token in tokens if token < 256).replace("Ġ", " ")


def run(engine, *, until=lambda ended: False) -> tuple[dict[str, list[int]], dict[str, object]]:
    tokens: dict[str, list[int]] = {}
    ended: dict[str, object] = {}
    while engine.has_work() and not until(ended):
        for answer in engine.step():
            if isinstance(answer, Failed):
                ended[answer.request_id] = answer.error
            else:
                assert isinstance(answer, GeneratedTokens)
                tokens.setdefault(answer.request_id, []).extend(answer.token_ids)
                if answer.finish_reason is not None:
                    ended[answer.request_id] = answer.finish_reason
    return tokens, ended


def test_others_go_on_while_a_grammar_is_compiled(engine, gated):
    engine.submit(generate("waits", "slow"))
    engine.submit(generate("goes on", max_tokens=8, stop_ids=[]))
    engine.submit(generate("quick", "ab"))
    tokens, ended = run(engine, until=lambda ended: len(ended) == 2)
    assert ended == {"goes on": "length", "quick": "stop"}
    assert text(tokens["quick"]) == "ab"
    assert engine.metrics()["requests_waiting"] == 1
    gated.gate.set()
    tokens, ended = run(engine)
    assert text(tokens["waits"]) == "slow"
    assert not engine.has_work()


@pytest.mark.parametrize("changes", [{"overlap": "off"}, {"overlap": "on"}, {"speculation": "ngram"}])
def test_a_grammar_goes_on_where_its_request_gave_way(directory, changes):
    patterns = {"many": r"[0-9]{3}-[a-f]{9}-[x-z]{20}", "new": "(yes|no), [a-c]{4}"}

    def answers(tenants: bool) -> tuple[dict[str, list[int]], SequenceEngine]:
        limits = {"max_running": 3 if tenants else 32, "max_batch_tokens": 32, "page_size": 4}
        settings = SequenceEngineSettings(**(limits | changes))
        runner = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=1 << 20)
        grammars = GrammarQueue(
            lambda: compiler_for("xgrammar", directory, SIZE), vocabulary=SIZE, stop_ids=[STOP], timeout_s=20
        )
        engine = SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}), grammars)
        tokens: dict[str, list[int]] = {}

        def submit(number: int, tenant: str) -> None:
            message = generate(f"{tenant}-{number}", patterns[tenant], max_tokens=60, seed=number)
            engine.submit(msgspec.structs.replace(message, tenant=tenant if tenants else ""))

        def take() -> None:
            for answer in engine.step():
                assert isinstance(answer, GeneratedTokens), answer
                tokens.setdefault(answer.request_id, []).extend(answer.token_ids)

        for number in range(6):
            submit(number, "many")
        for number in range(4):
            before = sum(map(len, tokens.values()))
            while sum(map(len, tokens.values())) < before + 12:  # grammars are compiled in threads meanwhile
                take()
            submit(number, "new")
        while engine.has_work():
            take()
        return tokens, engine

    plain, _ = answers(tenants=False)
    shared, engine = answers(tenants=True)
    assert engine.scheduler.fair_preemptions > 0
    assert shared == plain
    for name, tokens in shared.items():
        assert re.fullmatch(patterns[name.split("-")[0]], text(tokens)), text(tokens)


def test_one_who_leaves_while_its_grammar_is_compiled_is_forgotten(engine, gated):
    engine.submit(generate("left", "slow"))
    assert list(engine.step()) == []
    engine.cancel("left")
    assert not engine.has_work()
    gated.gate.set()
    assert run(engine) == ({}, {})


def test_a_wrong_grammar_ends_its_request_alone(engine):
    engine.submit(generate("wrong", "("))
    engine.submit(generate("right", "[ab]{4}"))
    tokens, ended = run(engine)
    assert ended["wrong"].param == "regex"
    assert set(text(tokens["right"])) <= {"a", "b"}
    assert ended["right"] == "stop"


def test_requests_whose_grammar_is_compiled_count_as_waiting(engine, gated):
    for number in range(3):
        engine.submit(generate(str(number), "slow"))
    with pytest.raises(OverloadedError):
        engine.submit(generate("one too many", "slow"))
    gated.gate.set()
    _, ended = run(engine)
    assert set(ended.values()) == {"stop"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_rows_do_not_touch_the_others(engine, temperature):
    alone = generate("free", temperature=temperature, stop_ids=[])
    engine.submit(alone)
    before = run(engine)[0]["free"]
    engine.submit(generate("free", temperature=temperature, stop_ids=[]))
    engine.submit(generate("bound", "[xyz]{9}", temperature=temperature, top_k=2, logit_bias={64: -100.0}, logprobs=2))
    tokens, _ = run(engine)
    assert tokens["free"] == before
    assert len(text(tokens["bound"])) == 9
    assert set(text(tokens["bound"])) <= {"x", "y", "z"}


def test_what_a_grammar_excludes_is_never_picked_however_likely():
    class Only:
        ended = False

        def fill_mask(self, mask, row):
            mask[row] = 0
            mask[row, 1] = 1 << 3

        def accept(self, token):
            return token == 35

        def forced(self):
            return []

        def rollback(self, count):
            raise AssertionError

    bound = SequenceRequest("r", [0], Sampling(max_tokens=1, temperature=2.0, seed=1, logprobs=1))
    bound.matcher = Only()
    free = SequenceRequest("s", [0], Sampling(max_tokens=1))
    logits = torch.full((2, 70), 0.0)
    logits[:, 7] = 50.0
    first, second = sample(logits, [bound, free])
    assert (first.token_id, second.token_id) == (35, 7)
    assert first.score.top[0][0] == 7, "scores are the model's own"
    logits[0, 35] = float("-inf")
    assert sample(logits, [bound, free])[0].token_id is None


def test_many_schemas_at_once(engine):
    schemas = [{"enum": [f"{number}", number, None]} for number in range(3)]
    for turn in range(4):
        for number, schema in enumerate(schemas):
            grammar = Grammar(kind="json_schema", source=json.dumps(schema), param="response_format")
            sampling = Sampling(max_tokens=20, temperature=1.0, seed=turn, stop_ids=[STOP], grammar=grammar)
            engine.submit(Generate(request_id=str(number), token_ids=[7, turn], sampling=sampling))
        tokens, ended = run(engine)
        for number, schema in enumerate(schemas):
            assert ended[str(number)] == "stop"
            assert json.loads(text(tokens[str(number)])) in schema["enum"]
    assert engine.metrics()["grammars_compiled_total"] == 3


KEYS = r'\{"temperature_celsius": [0-9]{1,3}, "city": "[a-d]{2}"\}'
"""A byte is a token here, so all but the last of each constant run is forced."""


def test_what_a_grammar_forces_is_taken_in_one_step(engine):
    engine.submit(generate("forced", KEYS, max_tokens=80))
    tokens, ended = run(engine)
    assert ended == {"forced": "stop"}
    assert re.fullmatch(KEYS, text(tokens["forced"]))
    metrics = engine.metrics()
    assert metrics["forced_tokens_total"] + metrics["sampled_tokens_total"] == len(tokens["forced"])
    assert metrics["forced_tokens_total"] > 30
    assert metrics["steps_total"] < 20


def test_forced_tokens_have_scores_where_those_are_asked_for_and_the_text_is_the_same(engine):
    engine.submit(generate("plain", KEYS, max_tokens=80))
    plain = run(engine)[0]["plain"]
    engine.submit(generate("scored", KEYS, max_tokens=80, logprobs=1))
    scores, scored = [], []
    while engine.has_work():
        for answer in engine.step():
            scores += answer.scores
            scored += answer.token_ids
    assert scored == plain
    assert len(scores) == len(plain)


@pytest.mark.parametrize("most", [1, 2, 9, 20, 21, 22])
def test_no_more_tokens_are_forced_than_a_request_may_have(engine, most):
    engine.submit(generate("cut", KEYS, max_tokens=most))
    tokens, ended = run(engine)
    assert len(tokens["cut"]) == most
    assert ended == {"cut": "length"}
    assert '{"temperature_celsius": '.startswith(text(tokens["cut"])[:24])


def test_a_grammar_that_does_not_accept_what_it_forces_ends_its_request_alone(engine):
    class Wrong:
        ended = False
        accepted = 0

        def fill_mask(self, mask, row):
            mask[row] = -1

        def accept(self, token):
            self.accepted += 1
            return self.accepted < 3

        def forced(self):
            return [97, 98] if self.accepted else []

        def rollback(self, count):
            raise AssertionError

    request = SequenceRequest("wrong", [1, 2], Sampling(max_tokens=9))
    request.matcher = Wrong()
    engine.scheduler.submit(request)
    engine.requests["wrong"] = request
    engine.submit(generate("right", "[ab]{4}"))
    tokens, ended = run(engine)
    assert "grammar" in str(ended["wrong"])
    assert len(tokens["wrong"]) == 2
    assert ended["right"] == "stop"


@pytest.mark.parametrize("settings", [{}, {"overlap": "on"}, {"speculation": "ngram"}, {"max_batch_tokens": 5}])
@pytest.mark.parametrize("pages", [16, 400])
def test_forced_tokens_change_no_text_whatever_else_the_engine_does(directory, gated, settings, pages):
    patterns = [KEYS, r'(\{"name": "[xy]{3}"\} ){3}', r"(aaaa|bbbb)*c", r'\["long constant text", [0-9]\]', None]
    asked = [
        generate(f"{number}", patterns[number % 5], max_tokens=60, seed=number, temperature=(0.0, 1.0)[number % 2])
        for number in range(10)
    ]

    def answers(settings: dict[str, object], pages: int) -> dict[str, list[int]]:
        room = pages * 4 * 256  # a page of four positions
        runner = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=room)
        assert runner.pages == pages
        grammars = GrammarQueue(lambda: gated, vocabulary=SIZE, stop_ids=[STOP], timeout_s=5)
        ready = Ready(device="cpu", cards=[], directories=[], report={})
        engine = SequenceEngine(runner, SequenceEngineSettings(**settings), ready, grammars)
        for one in asked:
            engine.submit(one)
        tokens, ended = run(engine)
        assert set(ended) == {one.request_id for one in asked}
        engine.scheduler.check_integrity()
        assert (engine.scheduler.preemptions > 0) == (pages == 16)
        return tokens

    assert answers(settings, pages) == answers({"max_running": 1}, 400)
