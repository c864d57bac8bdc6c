# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`kv_store` on a GPU: one program stores, and quantizes, keys and values of a block of heads of one token.

Shape letters: T tokens, H key-value heads, D head dim, E value dim. Knows no pages: a slot is a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.storage.paged_kv import LARGEST, PagedKV
from tessera_kernels.triton_parts.float8 import to_float8

BLOCK_ELEMENTS = 2048
"""Elements of one block of heads at most: what the registers of four warps hold without spilling, scales included."""


@triton.jit
def _put(
    p_new,
    p_cache,
    p_scale,
    token,
    slot,
    stride_t,
    stride_h,
    i_h,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST_ELEMENT: tl.constexpr,
    ROUND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    o_d = tl.arange(0, BLOCK)
    inside = (i_h < HEADS)[:, None] & (o_d < DIM)[None, :]
    p_row = p_new + token * stride_t + i_h.to(tl.int64)[:, None] * stride_h + o_d[None, :]
    b_new = tl.load(p_row, mask=inside, other=0)
    p_out = p_cache + (slot * HEADS + i_h)[:, None] * DIM + o_d[None, :]
    if LARGEST_ELEMENT > 0:
        b_x = b_new.to(tl.float32)
        b_scale = tl.max(tl.abs(b_x), axis=1)
        # `max` ignores NaN, but an overflow must stay visible in the scale.
        b_bad = tl.max((b_x != b_x).to(tl.int32), axis=1)  # noqa: PLR0124 - only NaN differs from itself
        b_scale = tl.where(b_bad > 0, float("nan"), tl.div_rn(b_scale, LARGEST_ELEMENT * 1.0))
        b_x = tl.div_rn(b_x, tl.broadcast_to(tl.maximum(b_scale, 1e-30)[:, None], b_x.shape))
        if ROUND:
            # Round to nearest, ties to even: adding 1.5 · 2^23 leaves no fraction bits.
            b_x = (b_x + 12582912.0) - 12582912.0
            b_x = tl.where(b_x == b_x, b_x, 0.0)  # noqa: PLR0124
        b_x = tl.minimum(tl.maximum(b_x, -LARGEST_ELEMENT * 1.0), LARGEST_ELEMENT * 1.0)
        if ROUND:
            tl.store(p_out, b_x.to(tl.int8), mask=inside)
        else:
            tl.store(p_out, to_float8(b_x, INTERPRETED), mask=inside)
        tl.store(p_scale + slot * HEADS + i_h, b_scale, mask=i_h < HEADS)
    else:
        tl.store(p_out, b_new.to(p_cache.dtype.element_ty), mask=inside)


@triton.jit
def kv_store_kernel(
    p_key,
    p_value,
    p_key_cache,
    p_value_cache,
    p_key_scale,
    p_value_scale,
    p_slots,
    key_stride_t,
    key_stride_h,
    value_stride_t,
    value_stride_h,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    LARGEST_ELEMENT: tl.constexpr,
    ROUND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program stores a block of heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    slot = tl.load(p_slots + token)
    _put(
        p_key,
        p_key_cache,
        p_key_scale,
        token,
        slot,
        key_stride_t,
        key_stride_h,
        i_h,
        HEADS,
        DIM,
        BLOCK_D,
        LARGEST_ELEMENT,
        ROUND,
        INTERPRETED,
    )
    _put(
        p_value,
        p_value_cache,
        p_value_scale,
        token,
        slot,
        value_stride_t,
        value_stride_h,
        i_h,
        HEADS,
        VALUE_DIM,
        BLOCK_E,
        LARGEST_ELEMENT,
        ROUND,
        INTERPRETED,
    )


def constants(heads: int, dim: int, value_dim: int, dtype: torch.dtype) -> dict[str, int | float | bool]:
    """The kernel's constants for a cache of that shape and dtype."""
    block_d, block_e = triton.next_power_of_2(dim), triton.next_power_of_2(value_dim)
    return {
        "HEADS": heads,
        "DIM": dim,
        "VALUE_DIM": value_dim,
        "BLOCK_H": min(triton.next_power_of_2(heads), max(1, BLOCK_ELEMENTS // max(block_d, block_e))),
        "BLOCK_D": block_d,
        "BLOCK_E": block_e,
        "LARGEST_ELEMENT": LARGEST.get(dtype, 0.0),
        "ROUND": dtype == torch.int8,
        "INTERPRETED": triton.knobs.runtime.interpret,
    }


def kv_store(key_THD: torch.Tensor, value_THE: torch.Tensor, cache: PagedKV, slots_T: torch.Tensor) -> None:
    """Launch `tessera_kernels.kv_store.kv_store`."""
    key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key_THD, value_THE))
    tokens, heads, dim = key.shape
    if not tokens:
        return
    chosen = constants(heads, dim, value.shape[2], cache.key_PSHD.dtype)
    kv_store_kernel[(tokens, triton.cdiv(heads, chosen["BLOCK_H"]))](
        key,
        value,
        cache.key_PSHD,
        cache.value_PSHE,
        cache.key_scale_PSH,
        cache.value_scale_PSH,
        slots_T,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        **chosen,
        num_warps=4,
    )
