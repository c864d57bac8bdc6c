"""Sampling judged as a distribution, and as independent of what shares the batch."""

from __future__ import annotations

import math

import pytest
import torch

from tessera.engine.sampler import _filter, sample
from tessera.engine.sequence_request import SequenceRequest
from tessera.wire.engine import Sampling

VOCABULARY = 6
LOGITS = torch.log(torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04]))


def request(tokens=(0,), **sampling) -> SequenceRequest:
    return SequenceRequest("r", list(tokens), Sampling(max_tokens=10, **sampling))


def frequencies(draws: int, **sampling) -> torch.Tensor:
    requests = [request(seed=seed, temperature=1.0, **sampling) for seed in range(draws)]
    tokens = [one.token_id for one in sample(LOGITS.repeat(draws, 1), requests)]
    return torch.bincount(torch.tensor(tokens), minlength=VOCABULARY).double() / draws


def assert_distribution(got: torch.Tensor, expected: list[float], draws: int) -> None:
    """Pearson's chi-squared at p = 0.001 over the values that may occur; the others never do."""
    limits = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}
    probability = torch.tensor(expected, dtype=torch.float64)
    assert (got[probability == 0] == 0).all()
    allowed = probability > 0
    statistic = (draws * (got - probability)[allowed] ** 2 / probability[allowed]).sum()
    assert statistic < limits.get(int(allowed.sum()) - 1, math.inf)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]),
        ({"top_k": 2}, [0.4 / 0.65, 0.25 / 0.65, 0, 0, 0, 0]),
        ({"top_p": 0.7}, [0.5, 0.3125, 0.1875, 0, 0, 0]),
        ({"min_p": 0.5}, [0.4 / 0.65, 0.25 / 0.65, 0, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0.4 / 0.65, 0.25 / 0.65, 0, 0, 0, 0]),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling, expected):
    draws = 4000
    assert_distribution(frequencies(draws, **sampling), expected, draws)


def test_temperature_sharpens():
    requests = [request(seed=seed, temperature=0.5) for seed in range(4000)]
    tokens = [one.token_id for one in sample(LOGITS.repeat(4000, 1), requests)]
    squared = torch.softmax(LOGITS * 2, dim=0).tolist()
    assert_distribution(torch.bincount(torch.tensor(tokens), minlength=6).double() / 4000, squared, 4000)


def test_the_same_seed_gives_the_same_tokens_whatever_shares_the_batch():
    def draw(companions: int) -> list[int | None]:
        own = request(seed=7, temperature=1.0, top_p=0.9)
        others = [request(seed=index, temperature=2.0) for index in range(companions)]
        logits = torch.randn(1 + companions, VOCABULARY, generator=torch.Generator().manual_seed(1))
        logits[-1] = LOGITS
        return [sample(logits, [*others, own])[-1].token_id for _ in range(20)]

    assert draw(0) == draw(1) == draw(9)


def test_greedy_takes_the_largest_and_needs_no_seed():
    assert sample(LOGITS[None], [request()])[0].token_id == 0


def test_a_temperature_too_small_to_divide_by_is_greedy():
    logits = LOGITS.flip(0)[None]  # the likeliest is the last one
    assert sample(logits, [request(temperature=1e-40, seed=1)])[0].token_id == VOCABULARY - 1


def test_a_top_k_beyond_any_vocabulary_leaves_the_others_alone():
    huge, other = sample(LOGITS.repeat(2, 1), [request(temperature=1.0, seed=1, top_k=2**63), request()])
    assert huge.token_id is not None
    assert other.token_id == 0


def test_a_row_without_top_p_keeps_its_tail_beside_one_that_has_it():
    tail = torch.full((64,), -30.0)
    tail[0] = 0.0
    samplings = [Sampling(max_tokens=1, temperature=1.0), Sampling(max_tokens=1, temperature=1.0, top_p=0.5)]
    plain, narrow = _filter(tail.repeat(2, 1), samplings)
    assert torch.isfinite(plain).all()
    assert not torch.isfinite(narrow).all()


def test_penalties_and_bias_move_the_choice():
    assert sample(LOGITS[None], [request(logit_bias={3: 100.0})])[0].token_id == 3
    penalised = request(tokens=(5,), presence_penalty=2.0)
    penalised.token_ids += [0]
    assert sample(LOGITS[None], [penalised])[0].token_id == 1
    frequent = request(tokens=(5,), frequency_penalty=0.3)
    frequent.token_ids += [0, 0]
    assert sample(LOGITS[None], [frequent])[0].token_id == 1
    repeated = request(tokens=(0,), repetition_penalty=5.0)
    assert sample(LOGITS[None], [repeated])[0].token_id == 1


def test_presence_penalty_does_not_count_the_prompt():
    assert sample(LOGITS[None], [request(tokens=(0, 0), presence_penalty=2.0)])[0].token_id == 0


def test_scores_are_the_models_own_log_probabilities():
    score = sample(LOGITS[None], [request(logprobs=2, temperature=0.0, logit_bias={5: 50.0})])[0].score
    assert score is not None
    assert score.logprob == pytest.approx(math.log(0.04), abs=1e-5)
    assert [token for token, _ in score.top] == [0, 1]
    assert score.top[0][1] == pytest.approx(math.log(0.4), abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_row_that_is_not_finite_is_told_and_leaves_the_others_alone(value):
    logits = torch.stack([torch.full((VOCABULARY,), value), LOGITS])
    broken, fine = sample(logits, [request(temperature=1.0, seed=1), request()])
    assert broken.token_id is None
    assert fine.token_id == 0
