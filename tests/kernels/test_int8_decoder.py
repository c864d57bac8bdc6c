"""Each part of the compiled decoder step equals its definition in float64, for every number of rows."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.cpu import instructions
from tessera_kernels.cpu.team import Team
from tessera_kernels.int8_decoder import gemm, row_ops
from tessera_kernels.int8_decoder.attention import attend_rows
from tessera_kernels.int8_decoder.layout import DecoderLinear, LinearField, fits, packed
from tessera_kernels.int8_linear import quantize_weight

pytestmark = pytest.mark.skipif(not instructions.available(), reason="the processor has no AVX-512 VNNI")


def multiplied(weight_NK, x_TK, *, bias=True, outliers=4, add=False, threads=1, group=None):
    """Outputs of `gemm.multiply` with random scales, and the exact outputs in float64."""
    generator = np.random.default_rng(len(x_TK))
    outputs, inputs = weight_NK.shape
    starts = np.arange(0, inputs, group or inputs)
    scale_N = generator.random(outputs).astype(np.float32) + 0.1
    scale_GT = generator.random((len(starts), len(x_TK))).astype(np.float32) + 0.1
    bias_N = generator.standard_normal(outputs).astype(np.float32)
    outliers_TM = generator.standard_normal((len(x_TK), max(1, outliers))).astype(np.float32)
    outlier_weight_MN = generator.standard_normal((outliers, outputs)).astype(np.float32)
    outlier_weight_MN = outlier_weight_MN.astype(np.float16).astype(np.float32)  # float16 is what is packed
    weights, epilogue = packed(weight_NK, group or inputs, scale_N, bias_N if bias else 0 * bias_N, outlier_weight_MN)
    fields = np.array([0, outputs, inputs, group or inputs, epilogue, 0, outliers, 0])
    assert len(fields) == len(LinearField)
    unsigned = (x_TK.astype(np.int32) + 128).astype(np.uint8)
    before = generator.standard_normal((len(x_TK), outputs)).astype(np.float32) if add else np.nan
    target = np.full((len(x_TK), outputs), np.nan, np.float32)
    target[:] = before
    for thread in range(threads):
        sums = np.full(16 * outputs, np.nan, np.float32)
        columns = gemm.column_blocks_of(outputs, thread, threads)
        gemm.multiply(columns, (0, len(x_TK)), fields, weights, (unsigned, scale_GT, outliers_TM, sums), target, add)
    scale_TK = scale_GT.T.astype(np.float64).repeat(np.diff([*starts, inputs]), axis=1)
    exact = ((x_TK * scale_TK) @ weight_NK.astype(np.float64).T) * scale_N
    exact += outliers_TM[:, :outliers].astype(np.float64) @ outlier_weight_MN
    return target, exact + (bias_N if bias else 0) + (before if add else 0)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 40),
    inputs=st.integers(1, 12),
    outputs=st.integers(1, 9),
    bias=st.booleans(),
    add=st.booleans(),
    outliers=st.sampled_from([0, 2, 16]),
    threads=st.integers(1, 3),
    group=st.sampled_from([None, 16, 48, 128]),
)
def test_a_gemm_is_exact_but_for_its_float_epilogue(tokens, inputs, outputs, bias, add, outliers, threads, group):
    generator = np.random.default_rng(tokens)
    weight_NK = generator.integers(-127, 128, (16 * outputs, 16 * inputs)).astype(np.int8)
    x_TK = generator.integers(-127, 128, (tokens, 16 * inputs)).astype(np.int8)
    got, exact = multiplied(weight_NK, x_TK, bias=bias, add=add, outliers=outliers, threads=threads, group=group)
    np.testing.assert_allclose(got, exact, rtol=2e-6, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize(("weight", "held"), [(0.1, True), (65504.0, True), (1e5, False)])
def test_outlier_weights_are_float16_values_and_others_do_not_fit(weight, held):
    weight_NK = torch.full((32, 32), 0.3)
    weight_NK[5, 3] = weight
    made = quantize_weight(weight_NK, torch.tensor([2, 3]))
    assert fits(DecoderLinear(made, None)) == held
    expected = weight_NK[:, 2:4].t().half().float()
    expected[1, 5] = expected[1, 5] if held else weight
    assert torch.equal(made.outlier_weight_MN, expected)


@pytest.mark.slow
@pytest.mark.parametrize("group", [None, 32])
def test_a_row_of_a_gemm_has_the_same_bits_whatever_other_rows_there_are(group):
    generator = np.random.default_rng(0)
    weight_NK = generator.integers(-127, 128, (32, 112)).astype(np.int8)
    x_TK = generator.integers(-127, 128, (31, 112)).astype(np.int8)
    x_TK[:] = x_TK[0]
    found = []
    for tokens in (1, 2, 4, 8, 16, 31):
        steps = np.full((4, tokens), 0.37, np.float32) * np.arange(1, 5, dtype=np.float32)[:, None]
        scales = np.linspace(0.1, 1, 32, dtype=np.float32)
        weights, epilogue = packed(weight_NK, group or 112, scales, 0 * scales, np.empty((0, 32), np.float32))
        fields = np.array([0, 32, 112, group or 112, epilogue, 0, 0, 0])
        out = np.full((tokens, 32), np.nan, np.float32)
        unsigned = (x_TK[:tokens].astype(np.int32) + 128).astype(np.uint8)
        work = (unsigned, steps, np.zeros((tokens, 1), np.float32), np.empty(16 * 32, np.float32))
        gemm.multiply((0, 2), (0, tokens), fields, weights, work, out, False)
        found.append(out)
    assert all(np.array_equal(out, found[0].repeat(len(out), axis=0)) for out in found)


@pytest.mark.slow
def test_int32_sums_of_the_largest_bytes_do_not_overflow():
    weight_NK, x_TK = np.full((16, 4096), -127, np.int8), np.full((3, 4096), 127, np.int8)
    got, exact = multiplied(weight_NK, x_TK, outliers=0)
    np.testing.assert_allclose(got, exact, rtol=1e-6)


def test_exp_is_within_two_units_of_the_last_place():
    x = np.concatenate([np.linspace(-87, 88, 20_001), [0.0, -0.0, 1e-8, np.nan, -200, 200]]).astype(np.float32)
    got = np.array([row_ops.exp(value) for value in x])
    exact = np.exp(np.clip(x, np.float32(-87), np.float32(88)).astype(np.float64))
    assert np.isnan(got[-3])
    assert np.isnan(exact[-3])
    units = np.abs(got - exact) / np.spacing(exact.astype(np.float32))
    assert np.nanmax(units) <= 2


@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(1, 9).map(lambda vectors: 16 * vectors),
    size=st.sampled_from([1e-30, 1.0, 1e20]),
    kept=st.integers(0, 3),
    group=st.sampled_from([16, 32, 144]),
)
def test_quantized_activations_are_within_half_a_step(width, size, kept, group):
    generator = np.random.default_rng(width)
    row = (generator.standard_normal(width) * size).astype(np.float32)
    shrink = (generator.random(width) + 0.5).astype(np.float32)
    columns = np.sort(generator.permutation(width)[:kept]).astype(np.int32)
    out, exact = np.zeros(width, np.uint8), np.full(3, np.nan, np.float32)
    steps = np.full(-(-width // group), np.nan, np.float32)
    row_ops.quantize(row, shrink, columns, group, np.empty(width, np.float32), out, exact, steps)
    wanted = row.astype(np.float64) * shrink
    wanted[columns] = 0
    parts = np.arange(0, width, group)
    np.testing.assert_allclose(steps, np.maximum.reduceat(np.abs(wanted), parts) / 127, rtol=1e-5, atol=1e-32)
    step = steps.astype(np.float64).repeat(group)[:width]
    assert (np.abs((out.astype(np.float64) - 128) * step - wanted) <= 0.5001 * step + 1e-30).all()
    assert (exact[: len(columns)] == row[columns]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 5])
def test_a_row_with_a_value_that_is_not_finite_has_a_scale_that_is_nan(value, column):
    row = np.ones(32, np.float32)
    row[column] = value
    work, out, exact = np.empty(32, np.float32), np.zeros(32, np.uint8), np.zeros(1, np.float32)
    step = np.zeros(1, np.float32)
    row_ops.quantize(row, np.ones(32, np.float32), np.array([5], np.int32), 32, work, out, exact, step)
    assert np.isnan(step[0])


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 128])
def test_heads_are_rotated_as_transformers_rotates_them(dim):
    generator = np.random.default_rng(dim)
    cosine, sine = (generator.standard_normal(dim).astype(np.float32) for _ in range(2))
    heads = generator.standard_normal((3, dim)).astype(np.float32)
    partner = np.concatenate([-heads[:, dim // 2 :], heads[:, : dim // 2]], axis=1)
    wanted = heads.astype(np.float64) * cosine + partner.astype(np.float64) * sine
    row_ops.rotate(heads.reshape(-1), dim, cosine, sine)
    np.testing.assert_allclose(heads, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("gate", "reference"), [(row_ops.gate_silu, torch.nn.functional.silu), (row_ops.gate_gelu, None)]
)
def test_gates_equal_torch(gate, reference):
    both = torch.linspace(-30, 30, 400).repeat(2).float()
    reference = reference or (lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    out = np.empty(400, np.float32)
    gate(both.numpy(), out)
    exact = reference(both[:400].double()) * both[400:].double()
    np.testing.assert_allclose(out, exact.numpy(), rtol=1e-5, atol=1e-5)


def by_element(keys_PSHD: np.ndarray) -> np.ndarray:
    """Keys as the decoder stores them, [P, H, S / 16, D, 16], from [P, S, H, D]."""
    pages, size, heads, dim = keys_PSHD.shape
    return np.ascontiguousarray(keys_PSHD.reshape(pages, size // 16, 16, heads, dim).transpose(0, 3, 1, 4, 2))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    context=st.integers(1, 120),
    rows_=st.integers(1, 6),
    window=st.sampled_from([0, 1, 3, 7, 100]),
    groups=st.integers(1, 4),
    vectors=st.integers(1, 5),
    size=st.sampled_from([16, 32]),
    kept=st.sampled_from(["float32", "float16", "int8"]),
)
def test_attention_equals_softmax_in_float64(context, rows_, window, groups, vectors, size, kept):
    generator = np.random.default_rng(context)
    dim, kv_heads = 16 * vectors, 3
    pages = generator.permutation(9)[: -(-126 // size)].astype(np.int32)
    query = generator.standard_normal((kv_heads, rows_, groups, dim)).astype(np.float32)
    shape = (9, size, kv_heads, dim)
    if kept == "int8":
        keys, values = (generator.integers(-127, 128, shape).astype(np.int8) for _ in range(2))
        scales = [(generator.random(shape[:3]) / 50).astype(np.float32) for _ in range(2)]
        true = [stored * scale[..., None] for stored, scale in zip((keys, values), scales, strict=True)]
    else:
        keys, values = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
        scales, true = [np.zeros((0, 0, 0), np.float32)] * 2, [keys, values]
        # Slots that were never written may hold anything.
        seen = context + rows_ - 1
        keys[pages[seen // size], seen % size :] = np.nan
        values[pages[seen // size], seen % size :] = np.nan
        if kept == "float16":
            halves = [torch.from_numpy(one).half() for one in (keys, values)]
            keys, values = (one.view(torch.int16).numpy() for one in halves)
            true = [one.float().numpy() for one in halves]
    steps = [np.ascontiguousarray(scale.transpose(0, 2, 1)) for scale in scales]
    cache = (by_element(keys), values, *steps, pages)

    def attended(heads: tuple[int, int], first: int, count: int) -> np.ndarray:
        given_ = np.ascontiguousarray(query[slice(*heads), first : first + count]).reshape(-1, dim)
        out = np.full_like(given_, np.nan)
        scores = np.full((len(given_), -(-(context + rows_) // 16) * 16), np.nan, np.float32)
        totals = np.full(len(given_) + 1, np.nan, np.float32)
        attend_rows(given_, *cache, context + first, window, heads, count, np.float32(0.2), scores, totals, out)
        return out.reshape(heads[1] - heads[0], count, groups, dim)

    out = np.concatenate([attended((0, 2), 0, rows_), attended((2, 3), 0, rows_)])
    for row in range(rows_):
        sees = context + row
        first = max(0, sees - window) if window else 0
        assert np.array_equal(attended((0, 3), row, 1)[:, 0], out[:, row])  # the same bits alone
        for head in range(kv_heads):
            key, value = (one[pages, :, head].reshape(-1, dim)[first:sees].astype(np.float64) for one in true)
            weights = torch.softmax(torch.from_numpy(0.2 * query[head, row].astype(np.float64) @ key.T), dim=1).numpy()
            np.testing.assert_allclose(out[head, row], weights @ value, rtol=1e-4, atol=2e-5)


def test_heads_are_stored_in_float16_as_torch_rounds_them():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (100_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    edges = torch.tensor(
        [
            0.0,
            -0.0,
            torch.inf,
            -torch.inf,
            torch.nan,
            3.4e38,
            -3.4e38,
            1e-45,
            65504.0,
            65519.0,
            65520.0,
            1e5,
            6e-8,
            2.9e-8,
        ]
    )
    head = torch.cat(
        [bits.view(torch.float32), edges, torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)]
    )
    head = torch.cat([head, torch.zeros(-len(head) % 48)])
    expected = head.clamp(-65504, 65504).half()
    dim = len(head) // 3
    every = np.full((3, dim, 16), 7, np.int16)
    for stored in (np.zeros((3, dim), np.int16), every[:, :, 5]):  # values, and keys
        row_ops.store(head.numpy().copy(), stored)
        got = torch.from_numpy(stored.copy()).view(torch.float16).view(-1)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got[~got.isnan()].view(torch.int16), expected[~got.isnan()].view(torch.int16))
    assert (every[:, :, [*range(5), *range(6, 16)]] == 7).all(), "neighbouring elements are not touched"


def test_a_nan_key_makes_every_row_that_sees_it_nan():
    keys, values = np.ones((1, 16, 1, 16), np.float32), np.ones((1, 16, 1, 16), np.float32)
    keys[0, 3] = np.nan
    nothing, out = np.zeros((0, 0, 0), np.float32), np.zeros((2, 16), np.float32)
    arguments = (np.ones((2, 16), np.float32), by_element(keys), values, nothing, nothing, np.zeros(1, np.int32))
    for context, spoiled in ((3, False), (4, True), (9, True)):
        scores, totals = np.zeros((2, 16), np.float32), np.zeros(3, np.float32)
        attend_rows(*arguments, context, 0, (0, 1), 1, np.float32(1), scores, totals, out)
        assert np.isnan(out).all() == spoiled


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 3000),
    places=st.lists(st.tuples(st.integers(0, 2999), st.sampled_from([7.0, -7.0, np.inf, -np.inf, np.nan, -np.nan]))),
    level=st.sampled_from([-np.inf, -3.0, 0.0, 1e-40]),
    begin=st.integers(0, 2999),
)
def test_argmax_is_the_first_of_the_largest_and_nan_if_there_is_one(width, places, level, begin):
    row_V = np.full(width, level, np.float32)
    for place, value in places:
        row_V[place % width] = np.copysign(np.float32(abs(value)), np.float32(value))
    begin %= width
    place, value = row_ops.argmax(row_V, begin, width)
    if np.isnan(row_V[begin:]).any():
        assert np.isnan(value)
    else:
        assert place == begin + row_V[begin:].argmax()
        assert value == row_V[place]


def test_argmax_of_an_empty_range_is_its_begin_and_minus_infinity():
    row_V = np.full(32, np.nan, np.float32)  # an empty range reads nothing of it
    assert row_ops.argmax(row_V, 16, 16) == (16, -np.inf)


def test_an_interrupted_call_of_a_team_does_not_disturb_the_next(monkeypatch):
    class Interrupted(queue.SimpleQueue):
        def get(self):
            raise KeyboardInterrupt

    team, met = Team(), []
    team.run(lambda thread, threads, shared: None, 2)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            team.run(lambda thread, threads, shared: met.append(thread), 2)
    hold = threading.Event()
    threading.Timer(0.05, hold.set).start()
    team.run(lambda thread, threads, shared: (hold.wait() if thread else None, met.append(2 + thread)), 2)
    assert sorted(met) == [0, 1, 2, 3]


def test_an_error_on_any_thread_is_raised_on_the_calling_thread():
    team, met = Team(), []

    def work(thread, threads, shared):
        met.append(thread)
        if thread == threads - 1:
            raise RuntimeError("the last one failed")

    with pytest.raises(RuntimeError, match="the last one failed"):
        team.run(work, 3)
    assert sorted(met) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="the last one failed"):
        team.run(work, 1)
    team.run(lambda thread, threads, shared: met.append((thread, threads, shared.ctypes.data % 64)), 2)
    assert sorted(met[-2:]) == [(0, 2, 0), (1, 2, 0)]
