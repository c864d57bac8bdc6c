"""`kv_store` writes the same bits as the reference to the given slots, and touches no other slot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.kv_store import kv_store, reference
from tessera_kernels.kv_store import triton as kernels
from tessera_kernels.storage.paged_kv import LARGEST, PagedKV, dequantize

DTYPES = [torch.float32, torch.float16, torch.bfloat16, *LARGEST]


def empty_cache(pages, size, heads, dims, dtype):
    cache = PagedKV.zeros(pages, size, heads, dims, dtype=dtype, device=torch.device("cpu"))
    for tensor in cache.tensors:
        tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else tensor.dtype).fill_(77)
    return cache


def comparable(tensor):
    return tensor.view(torch.uint8).int() if tensor.dtype.itemsize == 1 else tensor


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(0, 5),
    heads=st.sampled_from([1, 3, 8]),
    dims=st.sampled_from([(8, 8), (17, 5), (96, 64)]),
    transposed=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_the_reference(dtype, tokens, heads, dims, transposed, seed):
    generator = torch.Generator().manual_seed(seed)
    given_dtype = torch.bfloat16 if dtype in LARGEST else dtype
    pair = []
    for dim in dims:
        shape = (heads, tokens, dim) if transposed else (tokens, heads, dim)
        new = torch.randn(shape, generator=generator).to(given_dtype)
        pair.append(new.transpose(0, 1) if transposed else new)
    got, wanted = (empty_cache(3, 4, heads, dims, dtype) for _ in range(2))
    slots = torch.randperm(12, generator=generator)[:tokens]
    kernels.kv_store(*pair, got, slots)
    reference.kv_store(*pair, wanted, slots)
    for a, b in zip(got.tensors, wanted.tensors, strict=True):
        assert torch.equal(comparable(a), comparable(b))


@pytest.mark.parametrize("dtype", list(LARGEST))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_overflow_is_visible_in_its_own_head_only(dtype, bad):
    key, value = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    key[1, 0, 3] = bad
    cache = PagedKV.zeros(1, 4, 2, (8, 8), dtype=dtype, device=torch.device("cpu"))
    kernels.kv_store(key, value, cache, torch.tensor([2, 0]))
    finite = torch.isfinite(dequantize(cache.key_PSHD, cache.key_scale_PSH, torch.float32)).all(-1)[0]
    assert finite.tolist() == [[False, True], [True, True], [True, True], [True, True]]
    assert torch.isfinite(dequantize(cache.value_PSHE, cache.value_scale_PSH, torch.float32)).all()


def test_zeros_are_stored_as_zeros():
    cache = empty_cache(1, 2, 1, (8, 8), torch.int8)
    kernels.kv_store(torch.zeros(1, 1, 8), torch.zeros(1, 1, 8), cache, torch.tensor([1]))
    assert not cache.key_PSHD[0, 1].any()
    assert cache.key_scale_PSH[0, 1] == 0


def test_slots_beyond_two_to_the_31_elements():
    # The kernel maps memory when it is first touched: this uses a few pages of it.
    pages = 2**31 // (16 * 8 * 128) + 2
    key_cache = torch.empty(pages, 16, 8, 128, dtype=torch.int8)
    scale = torch.empty(pages, 16, 8)
    cache = PagedKV(key_cache, key_cache, scale, scale)
    new = torch.randn(1, 8, 128)
    slot = (pages - 1) * 16 + 3
    assert slot * 8 * 128 > 2**31
    kernels.kv_store(new, new, cache, torch.tensor([slot]))
    stored = dequantize(key_cache[-1, 3], scale[-1, 3], torch.float32)
    torch.testing.assert_close(stored, new[0], atol=0.03, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_beyond_float16_are_stored_as_its_largest_values(dtype):
    cache = PagedKV.zeros(1, 4, 1, (4, 4), dtype=torch.float16, device=torch.device("cpu"))
    new = torch.tensor([1.5, 65504.0, -3e38, float("nan")], dtype=dtype).view(1, 1, 4)
    kv_store(new, -new, cache, torch.tensor([2]))
    assert cache.key_PSHD[0, 2, 0, :3].tolist() == [1.5, 65504, -65504]
    assert cache.value_PSHE[0, 2, 0, :3].tolist() == [-1.5, -65504, 65504]
    assert cache.key_PSHD[0, 2, 0, 3].isnan()
    assert not cache.key_PSHD[0, [0, 1, 3]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_the_registered_op_passes_opcheck(dtype):
    cache = PagedKV.zeros(2, 4, 2, (8, 4), dtype=dtype, device=torch.device("cpu"))
    arguments = (torch.randn(3, 2, 8), torch.randn(3, 2, 4), cache.key_PSHD, cache.value_PSHE)
    scales = (cache.key_scale_PSH, cache.value_scale_PSH)
    torch.library.opcheck(torch.ops.tessera.kv_store.default, (*arguments, *scales, torch.tensor([5, 0, 2])))


def test_bad_input_is_refused():
    cache = PagedKV.zeros(2, 4, 2, (8, 8), dtype=torch.float32, device=torch.device("cpu"))
    new, slots = torch.zeros(1, 2, 8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="stores its own dtype"):
        kv_store(new.bfloat16(), new.bfloat16(), cache, slots)
    with pytest.raises(ValueError, match="as many values as keys"):
        kv_store(new, torch.zeros(2, 2, 8), cache, slots)
    half = PagedKV(cache.key_PSHD[:, ::2], cache.value_PSHE[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        kv_store(new, new, half, slots)
