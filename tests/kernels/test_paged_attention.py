"""Paged attention equals attention computed row by row in float64, whatever other sequences are in the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.kv_store import kv_store
from tessera_kernels.paged_attention import Ragged, cpu, paged_attention
from tessera_kernels.storage.paged_kv import LARGEST, PagedKV, dequantize, quantize, slot_bytes


def independent(query_QD, keys_LHD, values_LHE, own, scaling, window, softcap, sinks):
    """Attention of one query row over its sequence, in float64, head by head."""
    heads, groups = query_QD.shape[0], query_QD.shape[0] // keys_LHD.shape[1]
    first = 0 if window is None else max(0, own - window + 1)
    rows = []
    for head in range(heads):
        keys = keys_LHD[first : own + 1, head // groups].double()
        scores = keys @ query_QD[head].double() * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks[head].double()[None]])
        weights = torch.softmax(scores, dim=0)[: len(keys)]
        rows.append(weights @ values_LHE[first : own + 1, head // groups].double())
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["any", "reference"])
@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 24)), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 3, 16]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    dims=st.sampled_from([(8, 8), (16, 4)]),
    window=st.sampled_from([None, 1, 5]),
    softcap=st.sampled_from([None, 2.0]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_the_definition(implementation, sequences, page_size, heads, dims, window, softcap, with_sinks, seed):
    generator = torch.Generator().manual_seed(seed)
    (query_heads, kv_heads), (dim, value_dim) = heads, dims
    sequences = [(context, min(count, context)) for context, count in sequences]
    width = max(-(-context // page_size) for context, _ in sequences)
    total = sum(-(-context // page_size) for context, _ in sequences) + 2
    order = torch.randperm(total, generator=generator).tolist()
    # Slots that were never written have large garbage, which must not change the result.
    key_cache = torch.full((total, page_size, kv_heads, dim), 1e4)
    value_cache = torch.full((total, page_size, kv_heads, value_dim), 1e4)
    cache = PagedKV(key_cache, value_cache)
    table = torch.zeros(len(sequences), width, dtype=torch.int32)
    expected, queries = [], []
    sinks = torch.randn(query_heads, generator=generator) if with_sinks else None
    scaling = 1 / math.sqrt(dim)
    for row, (context, count) in enumerate(sequences):
        pages = [order.pop() for _ in range(-(-context // page_size))]
        table[row, : len(pages)] = torch.tensor(pages)
        keys = torch.randn(context, kv_heads, dim, generator=generator)
        values = torch.randn(context, kv_heads, value_dim, generator=generator)
        slots = torch.tensor([pages[p // page_size] * page_size + p % page_size for p in range(context)])
        kv_store(keys, values, cache, slots)
        query = torch.randn(count, query_heads, dim, generator=generator)
        queries.append(query)
        for index in range(count):
            own = context - count + index
            expected.append(independent(query[index], keys, values, own, scaling, window, softcap, sinks))
    ragged = Ragged(table, torch.tensor([c for c, _ in sequences]), [n for _, n in sequences])
    with pytest.MonkeyPatch.context() as patch:
        if implementation == "reference":
            patch.setattr(cpu, "suited", lambda *_: False)
        got = paged_attention(
            torch.cat(queries),
            cache,
            ragged,
            scaling=scaling,
            sliding_window=window,
            softcap=softcap,
            sinks_Q=sinks,
        )
    torch.testing.assert_close(got.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["any", "reference"])
def test_an_overflow_among_seen_positions_reaches_the_result(implementation, monkeypatch):
    if implementation == "reference":
        monkeypatch.setattr(cpu, "suited", lambda *_: False)
    for bad in (float("nan"), float("inf")):
        keys, values = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 1, 8)
        values[0, 1, 0, 3] = bad
        ragged = Ragged(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([3]), [1])
        assert not torch.isfinite(
            paged_attention(torch.randn(1, 1, 8), PagedKV(keys, values), ragged, scaling=1.0)
        ).all()
        keys[0, 1, 0, 3] = float("nan")
        assert not torch.isfinite(
            paged_attention(torch.randn(1, 1, 8), PagedKV(keys, values), ragged, scaling=1.0)
        ).any()


def test_garbage_in_unused_slots_never_reaches_the_result():
    generator = torch.Generator().manual_seed(2)
    keys, values = (torch.full((3, 4, 1, 8), float("nan")) for _ in range(2))
    keys[1:], values[1:] = torch.randn(2, 4, 1, 8, generator=generator), torch.randn(2, 4, 1, 8, generator=generator)
    keys[2, 1:], values[2, 1:] = float("nan"), float("inf")
    # One sequence of five positions in pages 1 and 2, one of two in page 1; unused table entries point at page 0.
    ragged = Ragged(torch.tensor([[1, 2], [1, 0]], dtype=torch.int32), torch.tensor([5, 2]), [1, 1])
    out = paged_attention(torch.randn(2, 2, 8, generator=generator), PagedKV(keys, values), ragged, scaling=1.0)
    assert torch.isfinite(out).all()


def test_head_counts_that_do_not_fit_are_refused():
    cache = torch.zeros(1, 4, 2, 8)
    ragged = Ragged(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([1]), [1])
    with pytest.raises(ValueError, match="multiple of kv heads"):
        paged_attention(torch.zeros(1, 3, 8), PagedKV(cache, cache), ragged, scaling=1.0)


def test_counts_that_do_not_add_up_are_refused():
    cache = torch.zeros(1, 4, 2, 8)
    ragged = Ragged(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([1]), [2])
    with pytest.raises(ValueError, match="add up to 2"):
        paged_attention(torch.zeros(1, 2, 8), PagedKV(cache, cache), ragged, scaling=1.0)


def test_storing_checks_shapes_and_slot_dtype():
    cache = torch.zeros(1, 4, 2, 8)
    with pytest.raises(ValueError, match="do not fit caches"):
        kv_store(torch.zeros(1, 1, 8), torch.zeros(1, 2, 8), PagedKV(cache, cache), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64"):
        kv_store(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), PagedKV(cache, cache), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("dtype", list(LARGEST))
@settings(max_examples=30, deadline=None)
@given(shape=st.tuples(*[st.integers(1, 5)] * 2, st.integers(1, 70)), size=st.floats(-12, 12), seed=st.integers(0, 99))
def test_quantized_values_are_within_half_a_step(dtype, shape, size, seed):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10.0**size
    values[0, 0] = 0
    numbers, scale = quantize(values, dtype)
    assert (numbers.dtype, scale.shape) == (dtype, shape[:2])
    largest = values.abs().amax(-1, keepdim=True)
    # float8 (e4m3) has three mantissa bits; below its smallest normal number the steps are even.
    step = largest / 127 if dtype == torch.int8 else torch.maximum(values.abs() / 8, largest / 448 * 2**-9)
    assert ((dequantize(numbers, scale, torch.float32) - values).abs() <= 0.5001 * step + 1e-37).all()


@pytest.mark.parametrize("dtype", list(LARGEST))
@pytest.mark.parametrize("implementation", ["any", "reference"])
def test_a_quantized_cache_is_smaller_and_close_to_the_exact_one(dtype, implementation, monkeypatch):
    if implementation == "reference":
        monkeypatch.setattr(cpu, "suited", lambda *_: False)
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(90, 2, 32, generator=generator) for _ in range(2))
    exact, quantized = (
        PagedKV.zeros(8, 16, 2, (32, 32), dtype=kind, device=torch.device("cpu")) for kind in (torch.float32, dtype)
    )
    for cache in (exact, quantized):
        kv_store(keys, values, cache, torch.arange(90))
    assert slot_bytes(2, (32, 32), dtype) * 128 == sum(tensor.nbytes for tensor in quantized.tensors)
    assert (
        3.5 * sum(tensor.nbytes for tensor in quantized.tensors) < sum(tensor.nbytes for tensor in exact.tensors) * 1.2
    )
    table = torch.arange(6, dtype=torch.int32)[None].repeat(3, 1)
    ragged = Ragged(table, torch.tensor([90, 41, 60]), [1, 1, 20])
    query = torch.randn(22, 4, 32, generator=generator)
    wanted = paged_attention(query, exact, ragged, scaling=32**-0.5)
    got = paged_attention(query, quantized, ragged, scaling=32**-0.5)
    error = ((got - wanted).square().mean() / wanted.square().mean()).sqrt()
    assert error < (0.01 if dtype == torch.int8 else 0.04)


@pytest.mark.parametrize("dtype", list(LARGEST))
def test_an_overflow_stays_visible_when_it_is_quantized(dtype):
    for bad in (float("nan"), float("inf")):
        keys, values = torch.randn(4, 1, 8), torch.randn(4, 1, 8)
        values[1, 0, 3] = bad
        cache = PagedKV.zeros(1, 4, 1, (8, 8), dtype=dtype, device=torch.device("cpu"))
        kv_store(keys, values, cache, torch.arange(4))
        ragged = Ragged(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([3]), [1])
        assert not torch.isfinite(paged_attention(torch.randn(1, 1, 8), cache, ragged, scaling=1.0)).all()
