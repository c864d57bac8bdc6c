"""Sampling judged as a distribution, and as independent of what shares the batch."""

from __future__ import annotations

import math

import pytest
import torch

from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling import filters
from tessera.sequence.sampling.noise import gumbel, next_noise_key
from tessera.sequence.sampling.sampler import _top_tokens, sample
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
    """Assert Pearson's chi-squared at p = 0.001 over the tokens that may occur; the others must not occur at all."""
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
    def draw(others_count: int) -> list[int | None]:
        own = request(seed=7, temperature=1.0, top_p=0.9)
        others = [request(seed=index, temperature=2.0) for index in range(others_count)]
        logits = torch.randn(1 + others_count, VOCABULARY, generator=torch.Generator().manual_seed(1))
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
    plain, narrow = filters.filter_vocabulary(tail.repeat(2, 1), samplings)
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


def logits_of(seed: int, rows: int, spread: float, vocabulary: int = 5000) -> torch.Tensor:
    return spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def kept(logits_RV: torch.Tensor) -> list[set[int]]:
    return [set(torch.isfinite(row).nonzero()[:, 0].tolist()) for row in logits_RV]


FILTERS = [
    {"top_k": 7},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.02},
    {"top_k": 200, "top_p": 0.8, "min_p": 0.001},
    {"top_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize("changes", FILTERS)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_the_few_likeliest_tokens_suffice_or_say_that_they_do_not(changes, spread):
    logits_RV = logits_of(1, 12, spread)
    samplings = [Sampling(max_tokens=1, **changes)] * 12
    wanted = kept(filters.filter_vocabulary(logits_RV, samplings))
    ids_RK, kept_RK, complete_R = filters.filter_candidates(logits_RV, samplings)
    for row, complete in enumerate(complete_R.tolist()):
        found = {int(ids_RK[row, place]) for place in torch.isfinite(kept_RK[row]).nonzero()[:, 0]}
        assert found == wanted[row] if complete else found < wanted[row]
    if spread == 4.0:
        assert complete_R.all()


@pytest.mark.parametrize("changes", [*FILTERS, {"typical_p": 0.4}, {"top_k": 300, "top_p": 0.9, "typical_p": 0.7}, {}])
def test_filters_keep_what_transformers_keeps(changes):
    from transformers.generation import logits_process

    logits_RV = logits_of(2, 6, 2.0, vocabulary=400)
    wanted_RV = logits_RV
    warpers = {
        "top_k": logits_process.TopKLogitsWarper,
        "top_p": logits_process.TopPLogitsWarper,
        "min_p": logits_process.MinPLogitsWarper,
        "typical_p": logits_process.TypicalLogitsWarper,
    }
    for name, make in warpers.items():
        if name in changes:
            wanted_RV = make(changes[name])(None, wanted_RV)
    assert kept(filters.filter_vocabulary(logits_RV, [Sampling(max_tokens=1, **changes)] * 6)) == kept(wanted_RV)


def test_a_row_draws_the_same_whichever_way_its_neighbours_go():
    logits_RV = logits_of(3, 4, 1.0)  # too flat for the few likeliest tokens
    logits_RV[1] *= 5
    many = [
        request(temperature=1.0, seed=1, top_p=0.9),
        request(temperature=1.0, seed=2, top_p=0.9),
        request(temperature=1.3, seed=3),
        request(temperature=1.0, seed=4, typical_p=0.5),
    ]
    together = [one.token_id for one in sample(logits_RV, many)]
    alone = [sample(logits_RV[row : row + 1], [one])[0].token_id for row, one in enumerate(many)]
    assert together == alone


def test_noise_is_gumbel_noise_without_echoes_between_places_tokens_and_seeds():
    requests = [request(tokens=(0,) * 3, seed=seed) for seed in range(40)]
    later = [request(tokens=(0,), seed=seed) for seed in range(40)]
    for one in later:
        one.token_ids += [0]
    ids_1V = torch.arange(2000)[None]
    noise = gumbel([next_noise_key(one) for one in requests], ids_1V)
    other = gumbel([next_noise_key(one) for one in later], ids_1V)
    uniform = torch.exp(-torch.exp(-noise.double())).flatten().sort().values
    expected = (torch.arange(len(uniform)) + 0.5) / len(uniform)
    assert (uniform - expected).abs().max() < 1.95 / math.sqrt(len(uniform))  # Kolmogorov-Smirnov at p = 0.001
    for one, two in ((noise, other), (noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1])):
        correlation = torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(one.numel())


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf], [-math.inf], [math.inf, math.nan], [math.inf, -math.inf]])
@pytest.mark.parametrize("everywhere", [False, True])
def test_one_look_at_a_row_tells_what_all_of_it_would(bad, everywhere):
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(3))
    for place, value in enumerate(bad):
        logits[2, place :: len(bad) if everywhere else 50] = value
    tokens, finite = _top_tokens(logits, None)
    assert finite.tolist() == (torch.isfinite(logits).any(-1) & ~torch.isnan(logits).any(-1)).tolist()
    assert tokens[finite].tolist() == logits.argmax(-1)[finite].tolist()
