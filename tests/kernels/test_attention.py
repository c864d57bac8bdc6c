"""Bidirectional attention: the kernel, in the interpreter, equals the reference; quantized, it is within a bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.attention import attention, reference
from tessera_kernels.attention import triton as kernels
from tessera_kernels.attention.quantize import center_of, float8_channels, int8_blocks

SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 2}


def batch_of(batch, queries, keys, heads, dim, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, count, heads, dim, generator=generator).to(dtype) for count in (queries, keys, keys)]


def compared(query, key, value, **options):
    out = poisoned(*query.shape, dtype=query.dtype)
    scaling = query.shape[3] ** -0.5
    got = kernels.attention(query, key, value, scaling=scaling, out_BTHD=out, **options)
    assert got is out
    exact = [x.double() for x in (query, key, value)]
    scores = torch.einsum("bthd,bshd->bhts", exact[0], exact[1]) * scaling
    if options.get("lengths_B") is not None:
        there = torch.arange(key.shape[1]) < options["lengths_B"][:, None]
        scores = scores.masked_fill(~there[:, None, None], float("-inf"))
        exact[2] = exact[2].masked_fill(~there[..., None, None], 0)
    wanted = torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1), exact[2])
    return relative_rms(got, wanted)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    batch=st.integers(1, 2),
    queries=st.integers(1, 40),
    keys=st.integers(1, 70),
    heads=st.integers(1, 3),
    dim=st.sampled_from([8, 32, 40]),
    ragged=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_the_definition(batch, queries, keys, heads, dim, ragged, seed):
    given_batch = batch_of(batch, queries, keys, heads, dim, seed=seed)
    lengths = None
    if ragged:
        lengths = torch.randint(1, keys + 1, (batch,), generator=torch.Generator().manual_seed(seed))
        for row, length in enumerate(lengths.tolist()):
            given_batch[1][row, length:] = 1e4
            given_batch[2][row, length:] = float("nan")
    assert compared(*given_batch, lengths_B=lengths, configuration=SMALL) < BOUNDS[torch.float32]
    got = attention(*given_batch, lengths_B=lengths)
    mine = kernels.attention(*given_batch, lengths_B=lengths, scaling=dim**-0.5, configuration=SMALL)
    assert relative_rms(mine, got) < BOUNDS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_dtypes_and_dims_as_they_are_launched(dtype, dim):
    assert compared(*batch_of(1, 70, 150, 2, dim, dtype)) < BOUNDS[dtype]


@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 70, 150, 2, 64), (1, 130, 33, 1, 96), (1, 1, 16, 3, 128)])
def test_quantized_attention_is_within_its_bound(dtype, float8, shape):
    query, key, value = batch_of(*shape, dtype)
    # Keys with a large common part, which subtracting the mean key removes.
    key += 6 * torch.randn(1, 1, *shape[3:], generator=torch.Generator().manual_seed(1)).to(dtype)
    bound = BOUNDS[torch.float8_e4m3fn] if float8 else 2 * BOUNDS[torch.int8]
    assert compared(query, key, value, int8_scores=True, float8_values=float8) < bound


def test_quantized_attention_ignores_keys_behind_a_length():
    query, key, value = batch_of(2, 20, 90, 2, 32, torch.bfloat16)
    lengths = torch.tensor([90, 37], dtype=torch.int32)
    options = {"lengths_B": lengths, "int8_scores": True, "float8_values": True, "scaling": 0.2}
    clean = kernels.attention(query, key, value, **options)
    key[1, 37:], value[1, 37:] = float("nan"), float("inf")
    assert torch.equal(kernels.attention(query, key, value, **options), clean)


def test_subtracting_the_mean_key_keeps_differences_of_keys():
    key = torch.randn(1, 64, 1, 32) + 50
    center = center_of(key, None)
    torch.testing.assert_close(center, key.mean(1))
    plain, scale = int8_blocks(key, 64)
    smoothed, smoothed_scale = int8_blocks(key, 64, center_BHD=center)
    wanted = (key - center[:, None]).transpose(1, 2)
    assert relative_rms(smoothed.float() * smoothed_scale[..., None], wanted) < BOUNDS[torch.int8]
    moved = plain.float() * scale[..., None] - center[:, :, None]
    assert relative_rms(moved, wanted) > 5 * BOUNDS[torch.int8]


def test_values_are_transposed_and_padded():
    value = torch.randn(2, 37, 3, 24)
    numbers, scale = float8_channels(value)
    assert numbers.shape == (2, 3, 24, 48)
    assert not numbers[..., 37:].float().any()
    back = (numbers[..., :37].float() * scale[..., None]).permute(0, 3, 1, 2)
    assert relative_rms(back, value) < BOUNDS[torch.float8_e4m3fn]


@pytest.mark.parametrize("int8", [False, True])
def test_an_overflow_stays_in_its_head(int8):
    query, key, value = batch_of(2, 9, 40, 2, 32, torch.bfloat16)
    key[0, 11, 1, 3] = float("nan")
    value[1, 30, 0, 2] = float("inf")
    out = kernels.attention(query, key, value, scaling=0.2, int8_scores=int8, float8_values=int8)
    finite = torch.isfinite(out).all(3).all(1)
    assert finite.tolist() == [[True, False], [False, True]]


def test_strided_inputs():
    packed = torch.randn(1, 33, 3, 2, 32)
    query, key, value = packed.unbind(2)
    assert compared(query, key, value) < BOUNDS[torch.float32]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in batch_of(1, 20, 30, 2, 32)]
    assert compared(*turned) < BOUNDS[torch.float32]


def test_rows_beyond_two_to_the_31_elements():
    # Only pages that are touched take memory.
    memory = torch.empty(2**32 + 2**20, dtype=torch.int8).view(torch.float16)
    query, key, value = batch_of(1, 3, 3, 1, 32, torch.float16)
    far = memory.as_strided((1, 3, 1, 32), (1, 2**30 + 64, 1, 1))
    far.copy_(key)
    assert compared(query, far, value) < BOUNDS[torch.float16]
    far.copy_(query)
    assert compared(far, key, value) < BOUNDS[torch.float16]


def test_without_queries_the_result_is_empty():
    query, key, value = batch_of(1, 0, 4, 1, 8)
    assert kernels.attention(query, key, value, scaling=1.0).shape == (1, 0, 1, 8)
    assert attention(query, key, value).shape == (1, 0, 1, 8)


@pytest.mark.slow
def test_the_registered_op_passes_opcheck():
    query, key, value = batch_of(2, 5, 7, 2, 16)
    lengths = torch.tensor([7, 3])
    torch.library.opcheck(torch.ops.tessera.attention.default, (query, key, value, 0.25, lengths, True, True))
    compiled = torch.compile(lambda query: attention(query, key, value) + 1, backend="eager")
    torch.testing.assert_close(compiled(query), reference.attention(query, key, value, scaling=0.25) + 1)


def test_bad_input_is_refused():
    query, key, value = batch_of(2, 5, 7, 2, 16)
    for arguments, options, message in (
        ((query, key[:, :, :1], value[:, :, :1]), {}, "need keys and values"),
        ((query, key, value[:, :6]), {}, "need keys and values"),
        ((query, key.half(), value), {}, "torch.float16"),
        ((query.long(), key.long(), value.long()), {}, "torch.int64"),
        ((query, key[:, :0], value[:, :0]), {}, "at least one key"),
        (
            (query, key, value),
            {"lengths_B": torch.ones(3, dtype=torch.int64)},
            r"lengths must be int32 or int64 \(2,\)",
        ),
        ((query, key, value), {"float8_values": True}, "ask for both"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(*arguments, **options)
