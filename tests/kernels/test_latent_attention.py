"""Latent attention: the reference equals attention with expanded projections, the kernel equals the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.latent_attention import Ragged, latent_attention, reference
from tessera_kernels.latent_attention import triton as kernels

SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 2}


def batch_of(sequences, *, page=16, heads=5, rank=32, rope=8, dtype=torch.float32, seed=0):
    """Random queries, a cache whose unused slots hold garbage, and a page table."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-context // page) for context, _ in sequences]
    order = (torch.randperm(sum(pages), generator=generator) + 1).tolist()
    cache = torch.full((sum(pages) + 1, page, rank + rope), float("nan"), dtype=dtype)
    table = torch.zeros(len(sequences), max(pages) + 1, dtype=torch.int32)
    for row, (context, _) in enumerate(sequences):
        own = [order.pop() for _ in range(pages[row])]
        table[row, : len(own)] = torch.tensor(own)
        for position in range(context):
            slot = torch.randn(rank + rope, generator=generator)
            cache[own[position // page], position % page] = slot.to(dtype)
    counts = [count for _, count in sequences]
    query = torch.randn(sum(counts), heads, rank, generator=generator).to(dtype)
    rotated = torch.randn(sum(counts), heads, rope, generator=generator).to(dtype)
    return query, rotated, cache, Ragged(table, torch.tensor([context for context, _ in sequences]), counts)


def compared(query, rotated, cache, ragged, **options):
    out = poisoned(*query.shape, dtype=query.dtype)
    got = kernels.latent_attention(query, rotated, cache, ragged, scaling=0.1, out_TQR=out, **options)
    assert got is out
    exact = reference.latent_attention(query.float(), rotated.float(), cache.float(), ragged, scaling=0.1)
    return relative_rms(got, exact)


def test_is_attention_with_the_projections_multiplied_out():
    generator = torch.Generator().manual_seed(5)
    heads, dim, rank, rope, context = 3, 16, 32, 8, 21
    latent, rotated_key = (torch.randn(context, size, generator=generator) for size in (rank, rope))
    key_from, value_from = (torch.randn(heads, dim, rank, generator=generator) / rank**0.5 for _ in range(2))
    query, rotated = (torch.randn(1, heads, size, generator=generator) for size in (dim, rope))
    keys = torch.cat([torch.einsum("lr,hdr->lhd", latent, key_from), rotated_key[:, None].expand(-1, heads, -1)], 2)
    values = torch.einsum("lr,hdr->lhd", latent, value_from)
    scores = torch.einsum("hd,lhd->hl", torch.cat([query, rotated], 2)[0], keys) * 0.2
    wanted = torch.einsum("hl,lhd->hd", torch.softmax(scores, 1), values)

    cache = torch.zeros(2, 16, rank + rope)
    cache.view(32, -1)[:context] = torch.cat([latent, rotated_key], 1)
    ragged = Ragged(torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([context]), [1])
    absorbed = torch.einsum("thd,hdr->thr", query, key_from)
    mean = latent_attention(absorbed, rotated, cache, ragged, scaling=0.2)
    torch.testing.assert_close(torch.einsum("hr,hdr->hd", mean[0], value_from), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(4, 60), st.sampled_from([1, 1, 2, 4])), min_size=1, max_size=3),
    heads=st.sampled_from([1, 5, 16, 20]),
    dims=st.sampled_from([(32, 8), (24, 16), (64, 5)]),
    page=st.sampled_from([16, 24]),
    parts=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_reference(sequences, heads, dims, page, parts, seed):
    batch = batch_of(sequences, heads=heads, rank=dims[0], rope=dims[1], page=page, seed=seed)
    assert compared(*batch, parts=parts, configuration=SMALL) < BOUNDS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 2])
def test_with_the_configuration_of_the_heuristic(dtype, parts):
    batch = batch_of([(70, 1), (33, 2)], heads=16, rank=512, rope=64, dtype=dtype)
    assert compared(*batch, parts=parts) < BOUNDS[dtype]


def test_strided_queries_and_a_batch_without_rows():
    query, rotated, cache, ragged = batch_of([(30, 1), (9, 1)])
    packed = torch.cat([query, rotated], 2)
    assert compared(packed[..., :32], packed[..., 32:], cache, ragged) < BOUNDS[torch.float32]
    nothing = Ragged(ragged.page_table_BM, ragged.context_B, [0, 0])
    assert compared(query[:0], rotated[:0], cache, nothing) == 0


@pytest.mark.parametrize("parts", [1, 4])
def test_an_overflow_stays_in_its_sequence(parts):
    query, rotated, cache, ragged = batch_of([(60, 1), (60, 1)])
    cache[int(ragged.page_table_BM[0, 1]), 3, 5] = float("inf")
    out = kernels.latent_attention(query, rotated, cache, ragged, scaling=0.1, parts=parts, configuration=SMALL)
    assert not torch.isfinite(out[0]).all()
    assert torch.isfinite(out[1]).all()


def test_pages_beyond_two_to_the_31_elements():
    # Only pages that are touched take memory.
    pages = 2**31 // (16 * 576) + 2
    cache = torch.empty(pages, 16, 576, dtype=torch.float16)
    last = pages - 1
    assert last * 16 * 576 > 2**31
    query, rotated, near, _ = batch_of([(9, 1)], rank=512, rope=64, dtype=torch.float16)
    cache[last] = near[1]
    far = Ragged(torch.tensor([[last]], dtype=torch.int32), torch.tensor([9]), [1])
    got = kernels.latent_attention(query, rotated, cache, far, scaling=0.1)
    beside = Ragged(torch.tensor([[1]], dtype=torch.int32), torch.tensor([9]), [1])
    assert relative_rms(got, latent_attention(query, rotated, near, beside, scaling=0.1)) < BOUNDS[torch.float16]


def test_the_registered_op_passes_opcheck():
    query, rotated, cache, ragged = batch_of([(30, 1), (9, 3)])
    arguments = (query, rotated, cache, ragged.page_table_BM, ragged.context_B, ragged.query_counts, 0.1)
    torch.library.opcheck(torch.ops.tessera.latent_attention.default, arguments)


def test_bad_input_is_refused():
    query, rotated, cache, ragged = batch_of([(30, 1), (9, 3)])
    for arguments, message in (
        ((query, rotated[..., :4], cache, ragged), "add up to that of a slot"),
        ((query, rotated, cache[0], ragged), "add up to that of a slot"),
        ((query, rotated.half(), cache, ragged), "torch.float16"),
        ((query, rotated, cache[:, ::2], ragged), "contiguous"),
        ((query[:3], rotated[:3], cache, ragged), "add up to 4"),
        ((query, rotated, cache, Ragged(ragged.page_table_BM[:1], ragged.context_B, [1, 3])), "as many lines"),
    ):
        with pytest.raises(ValueError, match=message):
            latent_attention(*arguments, scaling=0.1)
