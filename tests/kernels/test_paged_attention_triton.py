"""The Triton kernel of paged attention, in the interpreter, equals the reference in float32 for the same inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.kv_store import kv_store
from tessera_kernels.paged_attention import Ragged, paged_attention, reference
from tessera_kernels.paged_attention import triton as kernels
from tessera_kernels.paged_attention.row_tiles import cut_tiles
from tessera_kernels.storage.paged_kv import LARGEST, PagedKV
from tessera_kernels.triton_parts.split_combine import parts_of, split_combine

CPU = torch.device("cpu")


def batch_of(sequences, *, page=16, heads=(4, 2), dims=(16, 16), dtype=torch.float32, stored=None, seed=0):
    """Random queries, a cache whose unused slots are NaN, and the page tables of the sequences."""
    generator = torch.Generator().manual_seed(seed)
    stored = stored or dtype
    pages = [-(-context // page) for context, _ in sequences]
    order = (torch.randperm(sum(pages), generator=generator) + 1).tolist()
    cache = PagedKV.zeros(sum(pages) + 1, page, heads[1], dims, dtype=stored, device=CPU)
    for tensor in cache.tensors:
        if tensor.dtype.is_floating_point:
            tensor.fill_(float("nan"))
    table = torch.zeros(len(sequences), max(pages) + 1, dtype=torch.int32)
    for row, (context, _) in enumerate(sequences):
        own = [order.pop() for _ in range(pages[row])]
        table[row, : len(own)] = torch.tensor(own)
        new = [torch.randn(context, heads[1], dim, generator=generator).to(dtype) for dim in dims]
        kv_store(*new, cache, torch.tensor([own[p // page] * page + p % page for p in range(context)]))
    counts = [count for _, count in sequences]
    query = torch.randn(sum(counts), heads[0], dims[0], generator=generator).to(dtype)
    return query, cache, Ragged(table, torch.tensor([context for context, _ in sequences]), counts)


def compared(query, cache, ragged, *, parts=None, configuration=None, **options):
    """Relative RMS error of the kernel against the reference in float32 for the same inputs."""
    options = {"scaling": query.shape[2] ** -0.5, "sliding_window": None, "softcap": None, "sinks_Q": None} | options
    out = poisoned(*query.shape[:2], cache.value_PSHE.shape[3], dtype=query.dtype)
    got = kernels.paged_attention(
        query,
        cache,
        ragged.page_table_BM,
        ragged.context_B,
        ragged.query_counts,
        out_TQE=out,
        parts=parts,
        configuration=configuration,
        **options,
    )
    assert got is out
    exact_cache = cache
    if cache.key_scale_PSH is None:
        exact_cache = PagedKV(cache.key_PSHD.float(), cache.value_PSHE.float())
    return relative_rms(got, reference.paged_attention(query.float(), exact_cache, ragged, **options))


SMALL = {"BLOCK_N": 16, "num_warps": 4, "num_stages": 2}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 70), st.sampled_from([1, 1, 2, 9, 40])), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]),
    dims=st.sampled_from([(16, 16), (24, 8), (8, 40)]),
    window=st.sampled_from([None, 1, 7, 33]),
    softcap=st.sampled_from([None, 2.0]),
    with_sinks=st.booleans(),
    parts=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_reference(sequences, heads, dims, window, softcap, with_sinks, parts, seed):
    sequences = [(context, min(count, context)) for context, count in sequences]
    batch = batch_of(sequences, heads=heads, dims=dims, seed=seed)
    sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed)) if with_sinks else None
    options = {"sliding_window": window, "softcap": softcap, "sinks_Q": sinks}
    assert compared(*batch, parts=parts, configuration=SMALL, **options) < BOUNDS[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("stored", [None, *LARGEST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("counts", [(1, 1), (3, 1)])
def test_every_dtype(dtype, stored, counts):
    sequences = list(zip((100, 37), counts, strict=True))
    batch = batch_of(sequences, dims=(64, 64), dtype=dtype, stored=stored)
    assert compared(*batch) < BOUNDS[dtype]
    assert compared(*batch, parts=2, configuration=SMALL) < BOUNDS[dtype]


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
def test_head_dims_as_they_are_launched(dim):
    assert compared(*batch_of([(40, 1), (70, 20)], dims=(dim, dim), dtype=torch.bfloat16)) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("page", [16, 32, 48, 128])
def test_every_page_size(page):
    assert compared(*batch_of([(200, 1), (131, 5)], page=page), parts=2) < BOUNDS[torch.float32]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(12, 50), st.sampled_from([1, 7, 12])), min_size=1, max_size=3),
    parts=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**31),
)
def test_a_draft_tree_equals_the_reference(sequences, parts, seed):
    batch = batch_of(sequences, seed=seed)
    tree = torch.rand(len(sequences), 13, 13, generator=torch.Generator().manual_seed(seed)) < 0.4
    tree |= torch.eye(13, dtype=torch.bool)
    options = {"tree_BNN": tree, "softcap": 3.0}
    assert compared(*batch, parts=parts, configuration=SMALL, **options) < BOUNDS[torch.float32]


def test_a_tree_without_branches_is_causal():
    query, cache, ragged = batch_of([(30, 5), (9, 9), (20, 1)])
    line = torch.ones(3, 9, 9).tril().bool()
    causal = paged_attention(query, cache, ragged, scaling=0.25)
    drafted = paged_attention(query, cache, ragged, scaling=0.25, tree_BNN=line)
    torch.testing.assert_close(drafted, causal)


def test_the_same_parts_give_the_same_bits():
    query, cache, ragged = batch_of([(500, 1), (90, 1)])
    outs = [
        kernels.paged_attention(
            query, cache, ragged.page_table_BM, ragged.context_B, [1, 1], scaling=0.25, parts=8, configuration=SMALL
        )
        for _ in range(2)
    ]
    assert torch.equal(*outs)


@pytest.mark.parametrize("parts", [1, 4])
def test_an_overflow_stays_in_its_sequence(parts):
    for bad in (float("nan"), float("inf")):
        query, cache, ragged = batch_of([(60, 1), (60, 1)])
        page = int(ragged.page_table_BM[0, 1])
        cache.value_PSHE[page, 3, 0, 5] = bad
        out = kernels.paged_attention(
            query, cache, ragged.page_table_BM, ragged.context_B, [1, 1], scaling=0.25, parts=parts, configuration=SMALL
        )
        assert not torch.isfinite(out[0, :2]).all()
        assert torch.isfinite(out[1]).all()
        assert torch.isfinite(out[0, 2:]).all()


def test_rows_that_are_strided_and_a_batch_without_rows():
    query, cache, ragged = batch_of([(20, 3), (33, 1)])
    strided = torch.empty(4, 16, 4).transpose(1, 2).copy_(query)
    assert compared(strided, cache, ragged) < BOUNDS[torch.float32]
    wide = torch.empty(4, 7, 16)[:, :4].copy_(query)
    assert compared(wide, cache, ragged) < BOUNDS[torch.float32]
    nothing = Ragged(ragged.page_table_BM, ragged.context_B, [0, 0])
    assert compared(query[:0], cache, nothing) == 0


def test_pages_beyond_two_to_the_31_elements():
    # The kernel maps memory when it is first touched: this uses a few pages of it.
    pages = 2**31 // (16 * 8 * 128) + 2
    keys = torch.empty(pages, 16, 8, 128, dtype=torch.int8)
    scales = torch.empty(pages, 16, 8)
    cache = PagedKV(keys, keys, scales, scales)
    new = torch.randn(9, 8, 128)
    last = pages - 1
    assert last * 16 * 8 * 128 > 2**31
    kv_store(new, new, cache, torch.arange(9) + last * 16)
    table = torch.tensor([[last]], dtype=torch.int32)
    near = PagedKV(keys[last:].clone(), keys[last:].clone(), scales[last:].clone(), scales[last:].clone())
    query = torch.randn(1, 8, 128)
    got = kernels.paged_attention(query, cache, table, torch.tensor([9]), [1], scaling=0.1)
    wanted = paged_attention(query, near, Ragged(table - last, torch.tensor([9]), [1]), scaling=0.1)
    assert relative_rms(got, wanted) < BOUNDS[torch.float32]


def test_rows_beyond_two_to_the_31_elements():
    _, cache, ragged = batch_of([(5, 1), (5, 1)], dims=(16, 16))
    memory = torch.empty(2**31 + 4096, dtype=torch.int8).view(torch.float16)
    query = memory.as_strided((2, 4, 16), (2**30 + 64, 16, 1))
    query.copy_(torch.randn(2, 4, 16))
    half = PagedKV(cache.key_PSHD.half(), cache.value_PSHE.half())
    assert compared(query, half, ragged) < BOUNDS[torch.float16]


def test_tiles_of_uniform_and_of_mixed_batches():
    uniform = cut_tiles((3, 3), 4, CPU)
    assert (uniform.count, uniform.tiles, uniform.splits) == (2, None, 6)
    mixed = cut_tiles((1, 0, 5, 2), 2, CPU)
    assert mixed.tiles is not None
    assert mixed.tiles.tolist() == [
        [0, 0, 0, 1, 0],
        [2, 1, 4, 5, -1],
        [2, 1 + 2, 2, 5, -1],
        [2, 1, 0, 5, -1],
        [3, 6, 0, 2, 1],
    ] or mixed.tiles.tolist()[1] == [2, 5, 4, 5, -1]
    assert mixed.split_rows.tolist() == [0, 6, 7]


def test_the_number_of_parts_fills_the_device_and_keeps_parts_long():
    assert parts_of(8, 100_000, 132) == 32
    assert parts_of(8, 700, 132) == 2
    assert parts_of(1000, 100_000, 132) == 1
    assert parts_of(1, 10**6, 132) == 64


def test_partial_results_without_positions_are_not_read():
    partial = torch.full((1, 4, 1, 8), float("nan"))
    partial[0, 1] = 3.0
    lse = torch.tensor([float("-inf"), 0.0, float("-inf"), float("-inf")]).view(1, 4, 1)
    out = poisoned(1, 1, 8, dtype=torch.float32)
    split_combine(partial, lse, None, None, out)
    torch.testing.assert_close(out, torch.full((1, 1, 8), 3.0))
    split_combine(partial, lse, None, torch.zeros(1), out)
    torch.testing.assert_close(out, torch.full((1, 1, 8), 1.5))


def test_the_registered_op_passes_opcheck():
    query, cache, ragged = batch_of([(9, 1), (20, 3)], stored=torch.int8)
    arguments = (query, cache.key_PSHD, cache.value_PSHE, cache.key_scale_PSH, cache.value_scale_PSH)
    pages = (ragged.page_table_BM, ragged.context_B, ragged.query_counts)
    torch.library.opcheck(torch.ops.tessera.paged_attention.default, (*arguments, *pages, 0.25, 8, None, None, None))


def test_torch_compile_gives_the_same_result():
    query, cache, ragged = batch_of([(9, 1), (20, 3)])
    compiled = torch.compile(lambda query: paged_attention(query, cache, ragged, scaling=0.25) + 1, backend="eager")
    torch.testing.assert_close(compiled(query), paged_attention(query, cache, ragged, scaling=0.25) + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_B": torch.tensor([30, 9, 1])}, "as many lines"),
        ({"context_B": torch.tensor([30, 9], dtype=torch.int32)}, "contexts int64"),
        ({"context_B": torch.tensor([3, 9])}, "context of 3: expected at least its 4"),
        ({"context_B": torch.tensor([99, 9])}, "at most 3 pages of 16"),
        ({"page_table_BM": torch.tensor([[1, 4, 0], [0, 0, 0]], dtype=torch.int32)}, "page 4; pages are 0 … 3"),
        ({"page_table_BM": torch.tensor([[1, -1, 0], [0, 0, 0]], dtype=torch.int32)}, "page -1"),
    ],
)
def test_bad_pages_are_refused_when_checked(change, message):
    query, cache, ragged = batch_of([(30, 4), (9, 1)])
    paged_attention(query, cache, ragged, scaling=1.0, checked=True)
    fields = {"page_table_BM": ragged.page_table_BM, "context_B": ragged.context_B} | change
    with pytest.raises(ValueError, match=message):
        paged_attention(query, cache, Ragged(query_counts=[4, 1], **fields), scaling=1.0, checked=True)


def test_bad_options_are_refused():
    query, cache, ragged = batch_of([(30, 4), (9, 1)])
    tree = torch.ones(2, 4, 4, dtype=torch.bool)
    for options, message in (
        ({"sliding_window": 0}, "at least one position"),
        ({"sinks_Q": torch.zeros(3)}, r"sinks must be of shape \(4,\)"),
        ({"tree_BNN": tree[:, :3, :3]}, "N at least 4"),
        ({"tree_BNN": tree.int()}, "bool"),
        ({"tree_BNN": tree, "sliding_window": 4}, "not defined"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_attention(query, cache, ragged, scaling=1.0, **options)
    with pytest.raises(ValueError, match="on one device, not meta, cpu"):
        paged_attention(query.to("meta"), cache, ragged, scaling=1.0)
    with pytest.raises(ValueError, match="same pages, slots, heads and dtype"):
        paged_attention(query, PagedKV(cache.key_PSHD, cache.value_PSHE.half()), ragged, scaling=1.0)


def test_scaling_multiplies_the_scores():
    query, cache, ragged = batch_of([(30, 4)])
    scaled = kernels.paged_attention(query, cache, ragged.page_table_BM, ragged.context_B, [4], scaling=0.5)
    doubled = kernels.paged_attention(
        query * math.sqrt(2), cache, ragged.page_table_BM, ragged.context_B, [4], scaling=0.5 / math.sqrt(2)
    )
    torch.testing.assert_close(scaled, doubled)
