# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The kernel of `attention`: online softmax (Milakov & Gimelshein 2018) over blocks of keys, for one tile of queries.

Scores are int8 products and values float8 if they were quantized before.

Shape letters: M queries of a tile, N keys of a block, D head dim. Knows nothing of how tensors were quantized.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_kernels.triton_parts.float8 import to_float8


@triton.jit
def _span(
    b_q,
    b_acc,
    b_largest,
    b_sum,
    p_key,
    p_value,
    p_key_scale,
    begin,
    end,
    key_stride,
    value_stride,
    value_stride_d,
    factor,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEY_ROWS: tl.constexpr,
    FLOAT8: tl.constexpr,
    MASKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Add keys [begin, end) to the online softmax, block by block.

    Without MASKED, `begin` and `end` are multiples of BLOCK_N. `factor` multiplies scores and contains log2(e), so that
    exponentials are to base 2.
    """
    o_n = tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, BLOCK_D)
    for start in range(begin, end, BLOCK_N):
        i_n = start + o_n
        i_key = i_n.to(tl.int64)[:, None]
        key_at = p_key + i_key * key_stride + o_d[None, :]
        value_at = p_value + i_key * value_stride + o_d[None, :] * value_stride_d
        stored = i_n < end
        if MASKED:
            # Quantized values are padded with zeros, so their loads need no mask up to the padded length.
            filled = i_n < value_stride_d if FLOAT8 else stored
            b_k = tl.load(key_at, mask=stored[:, None] & (o_d < DIM)[None, :], other=0.0)
            b_v = tl.load(value_at, mask=filled[:, None] & (o_d < DIM)[None, :], other=0.0)
        elif DIM == BLOCK_D:
            b_k = tl.load(key_at)
            b_v = tl.load(value_at)
        else:
            b_k = tl.load(key_at, mask=(o_d < DIM)[None, :], other=0.0)
            b_v = tl.load(value_at, mask=(o_d < DIM)[None, :], other=0.0)
        if INTERPRETED:
            b_s = tl.dot(b_q.to(tl.float32), tl.trans(b_k.to(tl.float32)), input_precision="ieee")
        else:
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee").to(tl.float32)
        if p_key_scale is not None:
            b_s = b_s * tl.load(p_key_scale + i_n // KEY_ROWS, mask=stored, other=0)[None, :]
        b_s = b_s * factor
        if MASKED:
            b_s = tl.where(stored[None, :], b_s, float("-inf"))
        b_new = tl.maximum(b_largest, tl.max(b_s, axis=1))
        b_p = tl.exp2(b_s - b_new[:, None])
        b_rescale = tl.exp2(b_largest - b_new)
        b_sum = b_sum * b_rescale + tl.sum(b_p, axis=1)
        b_acc = b_acc * b_rescale[:, None]
        b_largest = b_new
        b_share = to_float8(b_p * 448.0, INTERPRETED) if FLOAT8 else b_p.to(b_v.dtype)
        if INTERPRETED:
            b_acc += tl.dot(b_share.to(tl.float32), b_v.to(tl.float32), input_precision="ieee")
        elif FLOAT8:
            # Float8 units of Hopper accumulate with few bits; after this many products the sum is added in float32.
            b_acc = tl.dot(b_share, b_v, b_acc, max_num_imprecise_acc=min(64, BLOCK_N))
        else:
            b_acc = tl.dot(b_share, b_v, b_acc, input_precision="ieee")
    return b_acc, b_largest, b_sum


@triton.jit
def attention_kernel(
    p_query,
    p_key,
    p_value,
    p_query_scale,
    p_key_scale,
    p_value_scale,
    p_lengths,
    p_out,
    queries,
    keys,
    query_stride_b,
    query_stride_t,
    query_stride_h,
    key_stride_b,
    key_stride_t,
    key_stride_h,
    value_stride_b,
    value_stride_t,
    value_stride_h,
    value_stride_d,
    out_stride_b,
    out_stride_t,
    out_stride_h,
    scaling,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    QUERY_ROWS: tl.constexpr,
    KEY_ROWS: tl.constexpr,
    FLOAT8: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Compute one tile of queries of one head."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    i_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    i_h = (tl.program_id(1) % HEADS).to(tl.int64)
    i_b = (tl.program_id(1) // HEADS).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    inside = (i_m < queries)[:, None] & (o_d < DIM)[None, :]
    i_query = i_m.to(tl.int64)[:, None]
    query_at = p_query + i_b * query_stride_b + i_h * query_stride_h + i_query * query_stride_t + o_d[None, :]
    b_q = tl.load(query_at, mask=inside, other=0.0)
    count = keys
    if p_lengths is not None:
        count = tl.minimum(tl.load(p_lengths + i_b).to(tl.int32), keys)
    factor = scaling * LOG2_E
    if p_query_scale is not None:
        head = i_b * HEADS + i_h
        i_scale = head * tl.cdiv(queries, QUERY_ROWS) + tl.program_id(0) * BLOCK_M // QUERY_ROWS
        factor = factor * tl.load(p_query_scale + i_scale)
        p_key_scale += head * tl.cdiv(keys, KEY_ROWS)
    p_key += i_b * key_stride_b + i_h * key_stride_h
    p_value += i_b * value_stride_b + i_h * value_stride_h
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    b_largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    whole = count // BLOCK_N * BLOCK_N
    b_acc, b_largest, b_sum = _span(
        b_q,
        b_acc,
        b_largest,
        b_sum,
        p_key,
        p_value,
        p_key_scale,
        0,
        whole,
        key_stride_t,
        value_stride_t,
        value_stride_d,
        factor,
        DIM,
        BLOCK_N,
        BLOCK_D,
        KEY_ROWS,
        FLOAT8,
        False,
        INTERPRETED,
    )
    b_acc, b_largest, b_sum = _span(
        b_q,
        b_acc,
        b_largest,
        b_sum,
        p_key,
        p_value,
        p_key_scale,
        whole,
        count,
        key_stride_t,
        value_stride_t,
        value_stride_d,
        factor,
        DIM,
        BLOCK_N,
        BLOCK_D,
        KEY_ROWS,
        FLOAT8,
        True,
        INTERPRETED,
    )
    b_out = b_acc / b_sum[:, None]
    if FLOAT8:
        at = p_value_scale + (i_b * HEADS + i_h) * DIM + o_d
        b_out = b_out * (tl.load(at, mask=o_d < DIM, other=0.0) / 448.0)[None, :]
    out_at = p_out + i_b * out_stride_b + i_h * out_stride_h + i_query * out_stride_t + o_d[None, :]
    tl.store(out_at, b_out.to(p_out.dtype.element_ty), mask=inside)
