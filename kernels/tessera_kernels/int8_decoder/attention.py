"""Attention of some query rows of one sequence over pages. In compiled code, for head dims of multiples of 16.

In a page that is computed here keys lie by head, sixteen slots and number, [H, S / 16, D, 16], and their steps by head
and slot, [H, S]; values lie as everywhere, [S, H, D], their steps as those of keys. A row's result is the same bits
whatever rows are computed with it.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu.compiled import ELEMENTWISE, subroutine
from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.int8_decoder.attention_blocks import (
    HALF,
    OCTET,
    SINGLE,
    divide_rows,
    mix_rows,
    score_block,
    share_out,
    weigh_block,
)

_score_6, _score_6_halves, _score_6_octets = (score_block(6, item) for item in (SINGLE, HALF, OCTET))
_score_3, _score_3_halves, _score_3_octets = (score_block(3, item) for item in (SINGLE, HALF, OCTET))
_score_1, _score_1_halves, _score_1_octets = (score_block(1, item) for item in (SINGLE, HALF, OCTET))
_mix_6, _mix_6_halves, _mix_6_octets = (mix_rows(6, 4, item) for item in (SINGLE, HALF, OCTET))
_mix_3, _mix_3_halves, _mix_3_octets = (mix_rows(3, 4, item) for item in (SINGLE, HALF, OCTET))
_mix_1, _mix_1_halves, _mix_1_octets = (mix_rows(1, 1, item) for item in (SINGLE, HALF, OCTET))
_weigh, _share_out, _divide_rows = weigh_block(), share_out(), divide_rows()


@subroutine(ELEMENTWISE)
def _score(query, wide, queries, keys, pairs, steps, item, scores, scores_stride):
    """Products of some queries and a block's keys."""
    done = 0
    while done < queries:
        left = queries - done
        one, to = query + done * wide, scores + done * scores_stride
        if left >= 6:
            if item == SINGLE:
                _score_6(one, wide, keys, pairs, steps, to, scores_stride)
            elif item == HALF:
                _score_6_halves(one, wide, keys, pairs, steps, to, scores_stride)
            else:
                _score_6_octets(one, wide, keys, pairs, steps, to, scores_stride)
            done += 6
        elif left >= 3:
            if item == SINGLE:
                _score_3(one, wide, keys, pairs, steps, to, scores_stride)
            elif item == HALF:
                _score_3_halves(one, wide, keys, pairs, steps, to, scores_stride)
            else:
                _score_3_octets(one, wide, keys, pairs, steps, to, scores_stride)
            done += 3
        else:
            if item == SINGLE:
                _score_1(one, wide, keys, pairs, steps, to, scores_stride)
            elif item == HALF:
                _score_1_halves(one, wide, keys, pairs, steps, to, scores_stride)
            else:
                _score_1_octets(one, wide, keys, pairs, steps, to, scores_stride)
            done += 1


@subroutine(ELEMENTWISE)
def _mix(of_page, begin, end, to):
    """Add the values of those of a page's slots that lie between two positions to some queries' results."""
    at, size, values, stride, vectors, item = of_page
    shares, shares_stride, queries, out, wide = to
    begin, count = max(begin, at), min(end, at + size) - max(begin, at)
    if count <= 0:
        return
    shares, values = shares + begin * SINGLE, values + (begin - at) * stride
    done, by_four = 0, vectors % 4 == 0
    while done < queries:
        left = queries - done
        some, result = shares + done * shares_stride, out + done * wide
        if by_four and left >= 6:
            if item == SINGLE:
                _mix_6(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            elif item == HALF:
                _mix_6_halves(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            else:
                _mix_6_octets(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            done += 6
        elif by_four and left >= 3:
            if item == SINGLE:
                _mix_3(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            elif item == HALF:
                _mix_3_halves(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            else:
                _mix_3_octets(some, shares_stride, values, stride, count, vectors // 4, result, wide)
            done += 3
        else:
            if item == SINGLE:
                _mix_1(some, shares_stride, values, stride, count, vectors, result, wide)
            elif item == HALF:
                _mix_1_halves(some, shares_stride, values, stride, count, vectors, result, wide)
            else:
                _mix_1_octets(some, shares_stride, values, stride, count, vectors, result, wide)
            done += 1


@subroutine(ELEMENTWISE)
def _mix_singly(of_page, begin, end, context, window, rows, to):
    """`_mix` for each row by itself, of the positions that it sees."""
    shares, shares_stride, queries, out, wide = to
    groups = queries // rows
    for r in range(rows):
        sees, q = context + r, r * groups
        least = max(0, sees - window) if window > 0 else 0
        of_row = (shares + q * shares_stride, shares_stride, groups, out + q * wide, wide)
        _mix(of_page, max(begin, least), min(end, sees), of_row)


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
    totals_Q,
    out_QD,
):
    """Fill `out_QD` with softmax(scaling · q kᵀ) v of some rows' query heads that share some key-value heads.

    A page is computed with all of these heads before the next one is: its memory is read once, in order, and so is that
    of pages that lie one behind another, of which some is asked for ahead (`blocks.AHEAD`).

    Args:
        query_QD: float32; by key-value head, then by row, then those of the row that share the head.
        keys_PHND: one layer's keys, float32, float16 (as int16) or int8 with steps, [P, H, S / 16, D, 16].
        values_PSHD: of the same type.
        key_scale_PHS, value_scale_PHS: steps; of length 0 without.
        pages_M: the sequence's pages.
        context: positions that the first row sees, its own included; the next row sees one more.
        window: a row sees at most so many of them, the last; 0 for all.
        heads: first and last + 1 of keys and values.
        rows: how many.
        scaling: factor on the scores.
        scores_QL: float32, as wide as the pages that are seen; overwritten.
        totals_Q: float32, room for a number of each query and one more. (An array made here would be given back as soon
            as nothing but its address is used.)
        out_QD: float32.
    """
    queries, dim = query_QD.shape
    head, end_head = heads
    of_head = queries // (end_head - head)
    groups = of_head // rows
    size, kv_heads = values_PSHD.shape[1], values_PSHD.shape[2]
    scaled = len(key_scale_PHS) > 0
    item, wide = keys_PHND.itemsize, dim * SINGLE
    query, out, scores = query_QD.ctypes.data, out_QD.ctypes.data, scores_QL.ctypes.data
    scores_stride = scores_QL.shape[1] * SINGLE
    keys, values = keys_PHND.ctypes.data, values_PSHD.ctypes.data
    key_steps, value_steps = key_scale_PHS.ctypes.data, value_scale_PHS.ctypes.data
    block, stride, vectors = LANES * dim * item, kv_heads * dim * item, dim // LANES
    whole = size * stride
    # Where some of the rows see less, they are mixed one by one.
    first = max(0, context - window) if window > 0 else 0
    low, high = (max(0, context + rows - 1 - window) if window > 0 else 0), context
    if low >= high:
        low = high = context + rows
    ends = context + rows - 1
    first_page, last = first // size, (ends - 1) // size
    for page in range(first_page, last + 1):
        held = np.int64(pages_M[page])
        for h in range(head, end_head):
            row = (h - head) * of_head
            for number in range(size // LANES):
                at = page * size + number * LANES
                if at >= ends or at + LANES <= first:
                    continue
                key = keys + held * whole + (h * (size // LANES) + number) * block
                steps = key_steps + ((held * kv_heads + h) * size + number * LANES) * SINGLE
                to = scores + row * scores_stride + at * SINGLE
                _score(query + row * wide, wide, of_head, key, dim // 2, steps, item, to, scores_stride)
    totals_Q[queries] = scaling
    total = totals_Q.ctypes.data
    for q in range(0, queries, groups):
        sees = context + q % of_head // groups
        least = max(0, sees - window) if window > 0 else 0
        before = least // LANES * LANES
        share = scores + q * scores_stride + before * SINGLE
        factor = total + queries * SINGLE
        _share_out(share, scores_stride, groups, least - before, sees - before, factor, total + q * SINGLE)
    out_QD[:] = 0
    for page in range(first_page, last + 1):
        held, at = np.int64(pages_M[page]), page * size
        for h in range(head, end_head):
            value = values + held * whole + h * dim * item
            share, result = scores + (h - head) * of_head * scores_stride, out + (h - head) * of_head * wide
            for number in range(size // LANES if scaled else 0):
                block_at = at + number * LANES
                if block_at < ends and block_at + LANES > first:
                    steps = value_steps + ((held * kv_heads + h) * size + number * LANES) * SINGLE
                    _weigh(share + block_at * SINGLE, scores_stride, of_head, steps)
            of_page, to = (at, size, value, stride, vectors, item), (share, scores_stride, of_head, result, wide)
            if at < low:
                _mix_singly(of_page, 0, low, context, window, rows, to)
            if at < high and low < at + size:
                _mix(of_page, low, high, to)
            if high < min(ends, at + size):
                _mix_singly(of_page, high, ends, context, window, rows, to)
    _divide_rows(out, wide, queries, vectors, total)
