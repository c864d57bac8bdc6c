"""Attention of one query row over pages. In compiled code, for head dims of multiples of 16."""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.compiled import ELEMENTS, SUMS, compiled
from tessera_kernels.int8_decoder.machine import LANES, float_of_bits
from tessera_kernels.int8_decoder.rows import exp
from tessera_kernels.int8_decoder.vectors import fetch_rows, mix_rows, score_rows

SINGLE = 4
"""Bytes of a float32."""
LINE = 64
"""Bytes of a cache line."""
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LEAST = np.int32(-0x80000000)

_score_4_singles, _score_4_octets = score_rows(4, quantized=False), score_rows(4, quantized=True)
_score_singles, _score_octets = score_rows(1, quantized=False), score_rows(1, quantized=True)
_mix_4_singles, _mix_4_octets = mix_rows(4, quantized=False), mix_rows(4, quantized=True)
_fetch = fetch_rows()
_mix_singles, _mix_octets = mix_rows(1, quantized=False), mix_rows(1, quantized=True)


@compiled(ELEMENTS)
def _largest(scores):
    """Of all. Compared as integers, which vectors can; NaN is the largest or the smallest of all."""
    bits = scores.view(np.int32)
    largest = _LEAST
    for at in range(len(bits)):
        ordered = bits[at] ^ ((bits[at] >> np.int32(31)) & _MAGNITUDE)
        largest = max(largest, ordered)
    return float_of_bits(largest ^ ((largest >> np.int32(31)) & _MAGNITUDE))


@compiled(SUMS)
def _softmax(scores, scaling):
    """softmax(scaling · scores) in place. A score that is not a number makes all of them none."""
    for at in range(len(scores)):
        scores[at] *= scaling
    largest = _largest(scores)
    total = np.float32(0)
    for at in range(len(scores)):
        weight = exp(scores[at] - largest)
        scores[at] = weight
        total += weight
    factor = np.float32(1) / total
    for at in range(len(scores)):
        scores[at] *= factor


@compiled(ELEMENTS)
def attend_heads(
    query_QD,
    keys_PSHD,
    values_PSHD,
    key_scale_PSH,
    value_scale_PSH,
    pages_M,
    context,
    window,
    heads,
    scaling,
    scores_QL,
    out_QD,
):
    """Fill `out_QD` with softmax(scaling · q kᵀ) v of the query heads that share some key-value heads.

    A page is computed with all of these heads before the next one is: its memory is read once, in order.

    Args:
        query_QD: float32; as many rows to each key-value head.
        keys_PSHD, values_PSHD: one layer's cache, float32 or int8 with scales; these are of length 0 without.
        pages_M: the sequence's pages.
        context: positions that are seen, the row's own included.
        window: at most so many of them, the last; 0 for all.
        heads: first and last + 1 of keys and values.
        scaling: factor on the scores.
        scores_QL: float32, at least `context` wide; overwritten.
        out_QD: float32.
    """
    rows, dim = query_QD.shape
    head, end_head = heads
    groups = rows // (end_head - head)
    size, kv_heads = keys_PSHD.shape[1], keys_PSHD.shape[2]
    scaled = len(key_scale_PSH) > 0
    first = max(0, context - window) if window > 0 else 0
    item = 1 if scaled else SINGLE
    query, out = query_QD.ctypes.data, out_QD.ctypes.data
    keys, values = keys_PSHD.ctypes.data, values_PSHD.ctypes.data
    wide, stride, vectors = dim * item, kv_heads * dim * item, dim // LANES
    start, lines = head * wide, -(-(end_head - head) * wide // LINE)
    first_page, last = first // size, (context - 1) // size
    for page in range(first_page, last + 1):
        held = np.int64(pages_M[page])
        begin, end = max(0, first - page * size), min(size, context - page * size)
        at, count = page * size + begin, end - begin
        # While this page is computed, the next one comes: behind the last page of keys the first one of values.
        if page < last:
            _fetch(keys + np.int64(pages_M[page + 1]) * size * stride + start, stride, size, lines)
        else:
            _fetch(values + np.int64(pages_M[first_page]) * size * stride + start, stride, size, lines)
        for q in range(rows):
            of = head + q // groups
            key = keys + (held * size + begin) * stride + of * wide
            scores = scores_QL[q].ctypes.data + at * SINGLE
            if scaled:
                if vectors % 4 == 0:
                    _score_4_octets(query + q * dim * SINGLE, key, stride, count, vectors // 4, scores)
                else:
                    _score_octets(query + q * dim * SINGLE, key, stride, count, vectors, scores)
                for slot in range(begin, end):
                    scores_QL[q, page * size + slot] *= key_scale_PSH[held, slot, of]
            elif vectors % 4 == 0:
                _score_4_singles(query + q * dim * SINGLE, key, stride, count, vectors // 4, scores)
            else:
                _score_singles(query + q * dim * SINGLE, key, stride, count, vectors, scores)
    for q in range(rows):
        _softmax(scores_QL[q, first:context], scaling)
        out_QD[q] = 0
    for page in range(first_page, last + 1):
        held = np.int64(pages_M[page])
        begin, end = max(0, first - page * size), min(size, context - page * size)
        at, count = page * size + begin, end - begin
        if page < last:
            _fetch(values + np.int64(pages_M[page + 1]) * size * stride + start, stride, size, lines)
        for q in range(rows):
            of = head + q // groups
            value = values + (held * size + begin) * stride + of * wide
            shares, target = scores_QL[q].ctypes.data + at * SINGLE, out + q * dim * SINGLE
            if scaled:
                for slot in range(begin, end):
                    scores_QL[q, page * size + slot] *= value_scale_PSH[held, slot, of]
                if vectors % 4 == 0:
                    _mix_4_octets(shares, value, stride, count, vectors // 4, target)
                else:
                    _mix_octets(shares, value, stride, count, vectors, target)
            elif vectors % 4 == 0:
                _mix_4_singles(shares, value, stride, count, vectors // 4, target)
            else:
                _mix_singles(shares, value, stride, count, vectors, target)
