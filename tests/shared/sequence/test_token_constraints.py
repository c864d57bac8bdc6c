"""Bans, allow-lists and least lengths: the same masks as Transformers' processors, in every way of computing a step."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tessera.device.hardware import choose
from tessera.errors import InvalidRequestError
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.runner.build import build_runner
from tessera.sequence.sampling.constraints import TokenConstraints
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Failed, Generate, GeneratedTokens, Ready, Sampling

SIZE = 16
ids = st.integers(0, SIZE - 1)


def masked(sampling: Sampling, prompt: list[int], output: list[int]) -> torch.Tensor:
    logits = torch.zeros(SIZE)
    TokenConstraints(sampling).mask(logits, output, may_end=False)
    return torch.isinf(logits)


def reference(processors, prompt: list[int], output: list[int]) -> torch.Tensor:
    tokens, scores = torch.tensor([prompt + output], dtype=torch.int64), torch.zeros(1, SIZE)
    for processor in processors:
        scores = processor(tokens, scores)
    return torch.isinf(scores[0])


@settings(max_examples=300, deadline=None)
@given(
    banned=st.lists(st.lists(ids, min_size=1, max_size=4), min_size=1, max_size=6),
    output=st.lists(ids, max_size=8),
)
def test_banned_sequences_are_those_of_transformers(banned, output):
    banned = [sequence for sequence in banned if sequence != [SIZE - 1]]  # Transformers never bans the end token
    if not banned:
        return
    sampling = Sampling(max_tokens=9, banned=banned)
    expected = reference([NoBadWordsLogitsProcessor(banned, eos_token_id=SIZE - 1)], [], output or [])
    assert torch.equal(masked(sampling, [], output), expected)


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(ids, min_size=1, max_size=4),
    output=st.lists(ids, max_size=6),
    least=st.integers(0, 6),
    ends=st.lists(ids, min_size=1, max_size=3, unique=True),
    allowed=st.lists(ids, min_size=1, unique=True),
)
def test_least_lengths_and_allow_lists_are_those_of_transformers(prompt, output, least, ends, allowed):
    rest = [token for token in range(SIZE) if token not in allowed]
    processors = [
        MinNewTokensLengthLogitsProcessor(len(prompt), least, ends),
        *([SuppressTokensLogitsProcessor(rest)] if rest else []),
    ]
    sampling = Sampling(max_tokens=9, min_tokens=least, held_ids=ends, allowed_ids=allowed)
    assert torch.equal(masked(sampling, prompt, output), reference(processors, prompt, output))


def test_a_grammar_that_can_only_end_ends_before_the_least_length():
    logits = torch.full((SIZE,), float("-inf"))
    logits[3] = 1.0
    sampling = Sampling(max_tokens=9, min_tokens=5, held_ids=[3])
    TokenConstraints(sampling).mask(logits, [1], may_end=True)
    assert torch.isfinite(logits).nonzero().tolist() == [[3]]
    TokenConstraints(sampling).mask(logits, [1], may_end=False)
    assert not torch.isfinite(logits).any()


def test_ids_beyond_the_vocabulary_are_held_without_harm():
    logits = torch.zeros(SIZE)
    TokenConstraints(Sampling(max_tokens=9, min_tokens=5, held_ids=[2, 999])).mask(logits, [], may_end=False)
    assert torch.isinf(logits).nonzero().tolist() == [[2]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny random Llama, whose greedy text repeats itself, so that drafts are accepted."""
    directory = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


WAYS = {
    "plain": {"overlap": "off"},
    "overlapping": {"overlap": "on"},
    "speculative": {"overlap": "off", "speculation": "ngram"},
}


def answered(directory, way: str, samplings: dict[str, Sampling]) -> dict[str, list[int] | Failed]:
    own = SequenceEngineSettings(kv_cache_bytes=1 << 20, **WAYS[way])
    runner = build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=1 << 20)
    engine = SequenceEngine(runner, own, Ready(device="cpu", cards=[], directories=[], report={}))
    for name, sampling in samplings.items():
        engine.submit(Generate(request_id=name, token_ids=[5, 9, 3, 5, 9, 3, 5, 9], sampling=sampling))
    found: dict[str, list[int] | Failed] = {}
    while engine.has_work():
        for answer in engine.step():
            if isinstance(answer, Failed):
                found[answer.request_id] = answer
            else:
                assert isinstance(answer, GeneratedTokens)
                found.setdefault(answer.request_id, []).extend(answer.token_ids)
    return found


def test_constraints_hold_and_answers_are_the_same_in_every_way_of_computing_steps(directory):
    free = answered(directory, "plain", {"free": Sampling(max_tokens=24)})["free"]
    usual = max(free, key=free.count)
    pair = free[4:6]
    samplings = {
        "least": Sampling(max_tokens=24, stop_ids=[usual], min_tokens=10, held_ids=[usual]),
        "banned": Sampling(max_tokens=24, banned=[pair, [free[0]]]),
        "allowed": Sampling(max_tokens=24, allowed_ids=[1, 2, 3]),
        "warm": Sampling(max_tokens=24, temperature=1.0, seed=4, banned=[[1], [2, 3]], allowed_ids=[1, 2, 3, 4]),
        "free": Sampling(max_tokens=24),
    }
    found = {way: answered(directory, way, samplings) for way in WAYS}
    assert found["plain"] == found["overlapping"] == found["speculative"]
    answers = found["plain"]
    assert answers["free"] == free
    assert usual not in answers["least"][:10]
    assert len(answers["least"]) > 10
    assert free[0] not in answers["banned"]
    assert pair not in [answers["banned"][at : at + 2] for at in range(23)]
    assert set(answers["allowed"]) <= {1, 2, 3}
    assert set(answers["warm"]) <= {2, 3, 4}
    assert [2, 3] not in [answers["warm"][at : at + 2] for at in range(23)]


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_allows_no_token_is_refused_by_name_and_others_go_on(directory, way):
    samplings = {
        "none": Sampling(max_tokens=8, allowed_ids=[3], banned=[[3]]),
        "dead": Sampling(max_tokens=8, allowed_ids=[3], banned=[[3, 3]]),
        "other": Sampling(max_tokens=8),
    }
    found = answered(directory, way, samplings)
    for name, place in (("none", "at its beginning"), ("dead", "behind the 1 tokens")):
        failed = found[name]
        assert isinstance(failed, Failed)
        assert failed.error.type == InvalidRequestError("").type
        assert failed.error.param == "allowed_token_ids"
        assert place in failed.error.message
        assert "`bad_words`" in failed.error.message
    assert len(found["other"]) == 8
