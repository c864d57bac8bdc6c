"""Sampling: filters are those of their definitions, draws follow the probabilities, and the seed decides."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import relative_rms

from tessera_kernels.sampling import SEEN, Penalties, SamplingParameters, count_tokens, reference, registered, sample

IMPLEMENTATIONS = ["reference", "triton"]


def drawn(
    implementation: str, logits: torch.Tensor, how: SamplingParameters, penalties: Penalties | None = None
) -> torch.Tensor:
    if implementation == "reference":
        return sample(logits, how, penalties)
    from tessera_kernels.sampling import triton

    seen = (None,) * 4
    if penalties is not None:
        seen = (penalties.counts_BV, penalties.repetition_B, penalties.presence_B, penalties.frequency_B)
    out = torch.full((len(logits),), -99)
    of_row = (how.temperature_B, how.top_k_B, how.top_p_B, how.min_p_B, how.seed_B, how.position_B)
    return triton.sample(logits, *of_row, *seen, out_B=out)


def ways(rows: int, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0) -> SamplingParameters:
    """Each value for all rows, or a list with one for each."""

    def every(value, dtype):
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    floats = (every(value, torch.float32) for value in (temperature, top_p, min_p))
    temperature_B, top_p_B, min_p_B = floats
    places = (every(value, torch.int64) for value in (seed, position))
    return SamplingParameters(temperature_B, every(top_k, torch.int32), top_p_B, min_p_B, *places)


def allowed(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Allowed tokens by definition, one token at a time: likelier tokens are counted and their mass is summed."""
    values = logits.double().tolist()
    largest = max(values)
    by_k = [v for v in values if not top_k or sum(w > v for w in values) < top_k]
    total = sum(math.exp(v - largest) for v in by_k)
    kept = set()
    for token, value in enumerate(values):
        likelier = [w for w in values if w > value]
        mass = sum(math.exp(w - largest) for w in likelier)
        good = (not top_k or len(likelier) < top_k) and (top_p >= 1 or mass < top_p * total)
        if good and math.exp(value - largest) >= min_p and value > -math.inf:
            kept.add(token)
    return kept


@pytest.mark.parametrize("zero", [0, 2**63])
def test_the_random_numbers_are_philox(zero):
    # Known answers of Random123: all zeros, and all ones.
    ones = 0xFFFFFFFF
    words = tuple(torch.tensor([0 if zero == 0 else ones]) for _ in range(4))
    key = torch.tensor([0 if zero == 0 else -1])
    expected = (
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        if zero == 0
        else [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    )
    assert [int(word) for word in reference.philox(words, key)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10),
    coarse=st.booleans(),
    top_k=st.sampled_from([0, 1, 2, 5, 100]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.02]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_only_allowed_tokens_are_drawn(implementation, seed, coarse, top_k, top_p, min_p):
    torch.manual_seed(seed)
    logits = torch.randn(1, 37) * 3
    logits = logits.round() if coarse else logits  # many are equal
    logits[0, 5] = -math.inf
    rows = 2 if implementation == "triton" else 400
    got = drawn(implementation, logits.expand(rows, -1), ways(rows, 1.7, top_k, top_p, min_p, list(range(rows))))
    may = allowed(logits[0] / 1.7, top_k, top_p, min_p)
    assert set(got.tolist()) <= may
    kept = reference.allowed_tokens(logits / 1.7, *(torch.tensor([value]) for value in (top_k, top_p, min_p)))
    assert set(kept[0].nonzero()[:, 0].tolist()) == may


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    vocabulary=st.sampled_from([1, 3, 1000, 1025, 4096, 5003]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
    penalties=st.booleans(),
)
def test_the_kernel_draws_what_the_reference_draws(vocabulary, dtype, seed, position, penalties):
    torch.manual_seed(vocabulary)
    rows = 6
    logits = (torch.randn(rows, vocabulary + 5) * 4).to(dtype)[:, 2:-3]
    temperature = [0.0, 0.3, 0.7, 1.0, 1.5, 1.0]
    how = ways(
        rows,
        temperature,
        [0, 0, 7, 50, 3, 0],
        [1.0, 0.9, 1.0, 0.8, 1.0, 1.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.1],
        seed,
        position,
    )
    seen = None
    if penalties:
        counts = torch.randint(0, 3, (rows, vocabulary), dtype=torch.int32)
        counts += SEEN * torch.randint(0, 2, counts.shape, dtype=torch.int32)
        seen = Penalties(counts, *(torch.full((rows,), rate) for rate in (1.3, 0.5, 0.2)))
    got, exact = (drawn(implementation, logits, how, seen) for implementation in ("triton", "reference"))
    assert torch.equal(got, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "filtered"), [("reference", False), ("reference", True), ("triton", False)])
def test_draws_are_distributed_as_the_probabilities(implementation, filtered):
    """Chi-squared of many positions of one request, at one in a hundred thousand.

    Few draws of the kernel: the interpreter is slow, and it draws what the reference draws.
    """
    torch.manual_seed(0)
    logits = torch.randn(1, 12) * 1.5
    count = 100 if implementation == "triton" else 20_000
    how = ways(count, 0.8, *((6, 0.95) if filtered else (0, 1.0)), seed=1234, position=list(range(count)))
    got = drawn(implementation, logits.expand(count, -1), how)
    scaled = logits[0].double() / 0.8
    may = sorted(allowed(scaled, 6, 0.95, 0.0) if filtered else range(12))
    expected = torch.softmax(scaled[may], -1) * count
    found = torch.bincount(got, minlength=12)[may].double()
    assert int(found.sum()) == count
    # Rare ones together, so that each cell is large enough for the test to hold.
    rare = expected < 5
    found, expected = (torch.cat([x[~rare], x[rare].sum()[None]]) if rare.any() else x for x in (found, expected))
    statistic = float(((found - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    # Wilson & Hilferty's normal approximation of the chi-squared distribution; 4.26 deviations.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.26 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


def test_noise_has_the_mean_and_deviation_of_gumbels():
    noise = reference.gumbel(torch.arange(8), torch.arange(8), 50_000).double()
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_request_draws_the_same_in_any_batch(implementation):
    torch.manual_seed(3)
    logits = torch.randn(5, 1500)
    how = ways(5, 1.0, [0, 20, 0, 5, 0], [1.0, 1.0, 0.8, 0.9, 1.0], 0.0, [7, 8, 9, 10, 11], [0, 5, 6, 7, 2**33])
    together = drawn(implementation, logits, how)
    for row in (3, 4):
        fields = ("temperature_B", "top_k_B", "top_p_B", "min_p_B", "seed_B", "position_B")
        alone = SamplingParameters(*(getattr(how, field)[row : row + 1] for field in fields))
        assert drawn(implementation, logits[row : row + 1], alone).item() == together[row].item()
    assert torch.equal(drawn(implementation, logits, how), together)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("top_p", "min_p"), [(0.0, 0.0), (1.0, 2.0)])
def test_the_likeliest_tokens_are_always_allowed(implementation, top_p, min_p):
    logits = torch.tensor([[1.0, 5.0, 2.0, 5.0]]).repeat(12, 1)
    got = drawn(implementation, logits, ways(12, 1.0, 0, top_p, min_p, list(range(12))))
    assert set(got.tolist()) == {1, 3}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_seed_and_position_change_what_is_drawn(implementation):
    logits = torch.zeros(8, 1000)
    by_seed = drawn(implementation, logits, ways(8, seed=[2**32 * i for i in range(8)]))
    by_position = drawn(implementation, logits, ways(8, position=[2**32 * i for i in range(8)]))
    assert len(set(by_seed.tolist())) > 6
    assert len(set(by_position.tolist())) > 6


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_that_are_not_finite_draw_nothing_and_affect_no_other(implementation):
    logits = torch.zeros(6, 70)
    logits[:, 3] = 9.0
    logits[1, 5] = math.nan
    logits[2] = -math.inf
    logits[3, 69] = math.inf
    logits[4] = -math.inf
    logits[4, 8] = -3e38
    got = drawn(implementation, logits, ways(6, [1.0, 1.0, 1.0, 1.0, 1.0, 0.0], [2, 0, 2, 0, 3, 0], [0.5] * 5 + [1.0]))
    assert got.tolist() == [3, -1, -1, -1, 8, 3]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_masks_of_large_negative_values_work(implementation):
    logits = torch.full((3, 300), torch.finfo(torch.float32).min)
    logits[:, 10:14] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    logits[2] += 3e38
    got = drawn(implementation, logits, ways(3, 1.0, [2, 100, 2], [1.0, 0.9, 1.0], seed=5))
    assert set(got[:2].tolist()) <= {10, 11, 12, 13}
    assert got[0].item() in {12, 13}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_penalties_are_those_of_their_definitions(implementation):
    logits = torch.tensor([[2.0, 2.0, -1.0, 1.9, 1.8]]).repeat(4, 1)
    counts = torch.zeros(4, 5, dtype=torch.int32)
    count_tokens(counts, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), prompt=True)
    count_tokens(counts, torch.tensor([2, 3, 3, 3]), torch.tensor([0, 0, 0, 1]), prompt=False)
    assert counts.tolist() == [[SEEN, 0, 0, 0, 0], [SEEN, 0, 0, 0, 0], [1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]
    of_row = [torch.tensor(rates) for rates in ([2.0, 1.0, 1.0, 1.0], [0.0, 9.0, 0.5, 0.0], [0.0, 9.0, 0.0, 0.15])]
    # Repetition counts the prompt; presence and frequency do not; two times 0.15 and one time are different.
    got = drawn(implementation, logits, ways(4, 0.0), Penalties(counts, *of_row))
    assert got.tolist() == [1, 0, 1, 3]


@pytest.mark.slow
def test_a_large_vocabulary():
    torch.manual_seed(1)
    vocabulary = 262_144
    logits = torch.randn(2, vocabulary)
    logits[:, -1] = 30.0
    how = ways(2, 1.0, [0, 5], [0.5, 1.0], seed=3)
    got = drawn("triton", logits, how)
    assert got[0].item() == vocabulary - 1
    assert torch.equal(got, drawn("reference", logits, how))


def test_rows_beyond_two_to_the_31_elements_are_found():
    far = 2**31 + 64  # only the pages that are touched take memory
    logits = torch.empty(far + 16, dtype=torch.bfloat16).as_strided((2, 16), (far, 1))
    logits.copy_(torch.zeros(2, 16))
    logits[1, 7] = 99.0
    assert drawn("triton", logits, ways(2)).tolist()[1] == 7


def test_without_rows_there_are_no_tokens():
    assert drawn("triton", torch.zeros(0, 5), ways(0)).tolist() == []
    assert drawn("reference", torch.zeros(0, 5), ways(0)).tolist() == []


def test_the_registered_op_passes_opcheck():
    how = ways(3, 0.7, 5, 0.9, 0.01, 1, 2)
    of_row = (how.temperature_B, how.top_k_B, how.top_p_B, how.min_p_B, how.seed_B, how.position_B)
    torch.library.opcheck(registered.sample, (torch.randn(3, 9), *of_row, *(None,) * 4))
    rates = (torch.ones(3), torch.zeros(3), torch.zeros(3))
    torch.library.opcheck(registered.sample, (torch.randn(3, 9), *of_row, torch.ones(3, 9, dtype=torch.int32), *rates))


def test_torch_compile_sees_one_op():
    how = ways(3, 0.7, 5, 0.9, 0.01, 1, 2)
    logits = torch.randn(3, 9)
    whole = torch.compile(lambda x: sample(x * 2, how) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(whole(logits), sample(logits * 2, how) + 1)


def test_the_sorted_mass_is_exact_enough():
    """The reference's own sums, against float64 of the softmax."""
    x = torch.randn(1, 5000) * 3
    kept = reference.allowed_tokens(x, torch.tensor([0]), torch.tensor([0.9]), torch.tensor([0.0]))
    mass = torch.softmax(x.double(), -1)
    assert mass[kept].sum() >= 0.9
    assert mass[kept].sum() - mass[kept].min() < 0.9
    assert relative_rms(mass.sum(), torch.tensor(1.0)) < 1e-9


def test_what_does_not_fit_is_refused():
    logits, how = torch.zeros(2, 5), ways(2)
    with pytest.raises(ValueError, match=r"logits must be \[rows, vocabulary\]"):
        sample(torch.zeros(5), how)
    with pytest.raises(ValueError, match=r"with strides \(1, 2\)"):
        sample(torch.zeros(5, 2).T, how)
    with pytest.raises(ValueError, match="this one is empty"):
        sample(torch.zeros(2, 0), how)
    with pytest.raises(ValueError, match=r"temperature must be torch.float32 \[2\], not torch.float32 \(3,\)"):
        sample(logits, ways(3))
    with pytest.raises(ValueError, match=r"counts must be int32 \[2, 5\], not torch.int64 \(2, 5\)"):
        sample(logits, how, Penalties(torch.zeros(2, 5, dtype=torch.int64), *(torch.zeros(2) for _ in range(3))))
