"""Attention of some query rows of one sequence over its pages, as compiled code. Head dims are multiples of 16.

Pages are stored as this code reads them: keys by head, block of 16 slots, element and slot, [H, S / 16, D, 16]; values
as everywhere, [S, H, D]; scales of int8 keys and values by head and slot, [H, S]. A row's result has the same bits
whatever rows are computed with it. Knows no layers and no threads.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu.compiled import ELEMENTWISE, subroutine
from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import F16_BYTES, F32_BYTES, I8_BYTES
from tessera_kernels.int8_decoder.attention_blocks import (
    add_weighted_values,
    divide_rows,
    exponentiate_scores,
    scale_weights,
    score_block,
)

# Loops for 6, 3 and 1 queries at once; the register file holds 6 queries × 4 vectors of accumulators and the values.
_score_6_f32, _score_6_f16, _score_6_i8 = (score_block(6, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_score_3_f32, _score_3_f16, _score_3_i8 = (score_block(3, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_score_1_f32, _score_1_f16, _score_1_i8 = (score_block(1, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_add_6_f32, _add_6_f16, _add_6_i8 = (add_weighted_values(6, 4, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_add_3_f32, _add_3_f16, _add_3_i8 = (add_weighted_values(3, 4, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_add_1_f32, _add_1_f16, _add_1_i8 = (add_weighted_values(1, 1, item) for item in (F32_BYTES, F16_BYTES, I8_BYTES))
_scale_weights, _exponentiate_scores, _divide_rows = scale_weights(), exponentiate_scores(), divide_rows()


@subroutine(ELEMENTWISE)
def _score(query, query_stride, queries, keys, pairs, scales, item, scores, scores_stride):
    """Scores of some queries and one block of 16 keys; parameters as for `attention_blocks.score_block`."""
    done = 0
    while done < queries:
        left = queries - done
        some, target = query + done * query_stride, scores + done * scores_stride
        if left >= 6:
            if item == F32_BYTES:
                _score_6_f32(some, query_stride, keys, pairs, scales, target, scores_stride)
            elif item == F16_BYTES:
                _score_6_f16(some, query_stride, keys, pairs, scales, target, scores_stride)
            else:
                _score_6_i8(some, query_stride, keys, pairs, scales, target, scores_stride)
            done += 6
        elif left >= 3:
            if item == F32_BYTES:
                _score_3_f32(some, query_stride, keys, pairs, scales, target, scores_stride)
            elif item == F16_BYTES:
                _score_3_f16(some, query_stride, keys, pairs, scales, target, scores_stride)
            else:
                _score_3_i8(some, query_stride, keys, pairs, scales, target, scores_stride)
            done += 3
        else:
            if item == F32_BYTES:
                _score_1_f32(some, query_stride, keys, pairs, scales, target, scores_stride)
            elif item == F16_BYTES:
                _score_1_f16(some, query_stride, keys, pairs, scales, target, scores_stride)
            else:
                _score_1_i8(some, query_stride, keys, pairs, scales, target, scores_stride)
            done += 1


@subroutine(ELEMENTWISE)
def _add_page(page, begin, end, rows):
    """Add the weighted values of the page's slots between the positions `begin` and `end` - 1 to some queries' outputs.

    Args:
        page: position of its first slot, its slots, address of the values, bytes between slots, vectors of a head,
            bytes of a stored element.
        begin: first position that counts.
        end: position behind the last one that counts.
        rows: address of the weights, bytes between queries' weights, queries, address of the outputs, bytes between
            queries' outputs.
    """
    first, size, values, stride, vectors, item = page
    weights, weights_stride, queries, output, output_stride = rows
    begin, count = max(begin, first), min(end, first + size) - max(begin, first)
    if count <= 0:
        return
    weights, values = weights + begin * F32_BYTES, values + (begin - first) * stride
    done, by_four = 0, vectors % 4 == 0
    while done < queries:
        left = queries - done
        some, target = weights + done * weights_stride, output + done * output_stride
        if by_four and left >= 6:
            if item == F32_BYTES:
                _add_6_f32(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            elif item == F16_BYTES:
                _add_6_f16(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            else:
                _add_6_i8(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            done += 6
        elif by_four and left >= 3:
            if item == F32_BYTES:
                _add_3_f32(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            elif item == F16_BYTES:
                _add_3_f16(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            else:
                _add_3_i8(some, weights_stride, values, stride, count, vectors // 4, target, output_stride)
            done += 3
        else:
            if item == F32_BYTES:
                _add_1_f32(some, weights_stride, values, stride, count, vectors, target, output_stride)
            elif item == F16_BYTES:
                _add_1_f16(some, weights_stride, values, stride, count, vectors, target, output_stride)
            else:
                _add_1_i8(some, weights_stride, values, stride, count, vectors, target, output_stride)
            done += 1


@subroutine(ELEMENTWISE)
def _add_page_by_row(page, begin, end, context, window, row_count, rows):
    """`_add_page` for each row by itself, of the positions that the row sees; `context` is that of the first row."""
    weights, weights_stride, queries, output, output_stride = rows
    groups = queries // row_count
    for r in range(row_count):
        sees, q = context + r, r * groups
        least = max(0, sees - window) if window > 0 else 0
        one_row = (weights + q * weights_stride, weights_stride, groups, output + q * output_stride, output_stride)
        _add_page(page, max(begin, least), min(end, sees), one_row)


@subroutine(ELEMENTWISE)
def attend_rows(
    query_QD,
    keys_PHND,
    values_PSHD,
    key_scale_PHS,
    value_scale_PHS,
    pages_M,
    context,
    window,
    heads,
    rows,
    scaling,
    scores_QL,
    sums_Q,
    out_QD,
):
    """Fill `out_QD` with softmax(scaling · q kᵀ) v, for the query heads of some rows that share some key-value heads.

    All these heads are computed for one page before the next page: the page's memory is read once, in order, and so are
    pages that lie one behind another. Keys and values are prefetched `attention_blocks.KV_PREFETCH_BYTES` ahead.

    Three passes: scores of all pages, softmax without its division, weighted sums of values of all pages; then the
    division of the outputs by the sums.

    Args:
        query_QD: float32 [Q, D]; ordered by key-value head, then row, then query head of that key-value head.
        keys_PHND: keys of one layer, [P, H, S / 16, D, 16], float32, float16 (as int16) or int8 with scales.
        values_PSHD: values of the layer, [P, S, H, D], of the same dtype.
        key_scale_PHS: float32 scales of int8 keys; of length 0 for the other dtypes.
        value_scale_PHS: float32 scales of int8 values; of length 0 for the other dtypes.
        pages_M: page indices of the sequence.
        context: positions that the first row sees, its own included; each further row sees one more.
        window: positions that a row sees at most, the last ones; 0 for all.
        heads: first key-value head, and the one behind the last.
        rows: query rows; consecutive positions of the sequence.
        scaling: float32 factor on the scores.
        scores_QL: float32 scratch, at least as wide as the pages that are seen; overwritten.
        sums_Q: float32 scratch [Q + 1]: sums of the softmax weights, and the scaling. (Compiled code must not make it:
            Numba frees an array behind the last use of its name, even where its address is still used.)
        out_QD: float32 [Q, D], written.
    """
    queries, dim = query_QD.shape
    head, end_head = heads
    head_queries = queries // (end_head - head)
    groups = head_queries // rows
    size, kv_heads = values_PSHD.shape[1], values_PSHD.shape[2]
    scaled = len(key_scale_PHS) > 0
    item, row_bytes = keys_PHND.itemsize, dim * F32_BYTES
    query, out, scores = query_QD.ctypes.data, out_QD.ctypes.data, scores_QL.ctypes.data
    scores_stride = scores_QL.shape[1] * F32_BYTES
    keys, values = keys_PHND.ctypes.data, values_PSHD.ctypes.data
    key_scales, value_scales = key_scale_PHS.ctypes.data, value_scale_PHS.ctypes.data
    block_bytes, slot_stride, vectors = LANES * dim * item, kv_heads * dim * item, dim // LANES
    page_bytes = size * slot_stride
    # Positions low … high - 1 are seen by all rows; those before and behind by some rows, which add them one by one.
    first = max(0, context - window) if window > 0 else 0
    low, high = (max(0, context + rows - 1 - window) if window > 0 else 0), context
    if low >= high:
        low = high = context + rows
    ends = context + rows - 1
    first_page, last = first // size, (ends - 1) // size
    for page in range(first_page, last + 1):
        stored = np.int64(pages_M[page])
        for h in range(head, end_head):
            row = (h - head) * head_queries
            for block in range(size // LANES):
                at = page * size + block * LANES
                if at >= ends or at + LANES <= first:
                    continue
                key = keys + stored * page_bytes + (h * (size // LANES) + block) * block_bytes
                scales = key_scales + ((stored * kv_heads + h) * size + block * LANES) * F32_BYTES
                target = scores + row * scores_stride + at * F32_BYTES
                some = query + row * row_bytes
                _score(some, row_bytes, head_queries, key, dim // 2, scales, item, target, scores_stride)
    sums_Q[queries] = scaling
    sums = sums_Q.ctypes.data
    for q in range(0, queries, groups):
        sees = context + q % head_queries // groups
        least = max(0, sees - window) if window > 0 else 0
        before = least // LANES * LANES
        some = scores + q * scores_stride + before * F32_BYTES
        factor = sums + queries * F32_BYTES
        _exponentiate_scores(some, scores_stride, groups, least - before, sees - before, factor, sums + q * F32_BYTES)
    out_QD[:] = 0
    for page in range(first_page, last + 1):
        stored, at = np.int64(pages_M[page]), page * size
        for h in range(head, end_head):
            value = values + stored * page_bytes + h * dim * item
            weights = scores + (h - head) * head_queries * scores_stride
            target = out + (h - head) * head_queries * row_bytes
            for block in range(size // LANES if scaled else 0):
                block_at = at + block * LANES
                if block_at < ends and block_at + LANES > first:
                    scales = value_scales + ((stored * kv_heads + h) * size + block * LANES) * F32_BYTES
                    _scale_weights(weights + block_at * F32_BYTES, scores_stride, head_queries, scales)
            of_page = (at, size, value, slot_stride, vectors, item)
            of_rows = (weights, scores_stride, head_queries, target, row_bytes)
            if at < low:
                _add_page_by_row(of_page, 0, low, context, window, rows, of_rows)
            if at < high and low < at + size:
                _add_page(of_page, low, high, of_rows)
            if high < min(ends, at + size):
                _add_page_by_row(of_page, high, ends, context, window, rows, of_rows)
    _divide_rows(out, row_bytes, queries, vectors, sums)
