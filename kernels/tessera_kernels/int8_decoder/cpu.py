"""A step of a whole decoder in one compiled call, by several threads that meet at barriers.

What Python and torch take to start some thousand small operations is most of a decode step on a CPU; here nothing is
started. Every thread runs `advance` with the same arguments and takes its share of rows, of output columns or of heads.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from tessera_kernels.compiled import ELEMENTS, compiled, numba
from tessera_kernels.int8_decoder import rows, vectors
from tessera_kernels.int8_decoder.attend import attend_rows
from tessera_kernels.int8_decoder.layout import Field, Part
from tessera_kernels.int8_decoder.machine import LANES, fetch_add, load_shared, relax

MOST_ROWS, PAIR = 16, 2
"""Rows that are multiplied at once, one register for the sums of each; or half as many by so many blocks of columns, so
that what is read of a row serves two products. That is faster where weights are read again for more rows, and slower
where each weight comes from memory once."""
NEAR = 1 << 18
"""Bytes of rows that a second-level cache keeps beside what else comes by."""
SPINS = 2_000
"""Looks at the barrier before the processor is given to somebody else."""
SILU, GELU = 0, 1
SINGLE = 4
"""Bytes of a float32, and of an int32."""

_dot_8_pair, _dot_16, _dot_8 = vectors.dot_rows(8, 1, PAIR), vectors.dot_rows(16, 1), vectors.dot_rows(8, 1)
_dot_4, _dot_2, _dot_1 = vectors.dot_rows(4, 2), vectors.dot_rows(2, 4), vectors.dot_rows(1, 4)
_gather_8_pair = vectors.gather_rows(8, 1, PAIR)
_gather_16, _gather_8 = vectors.gather_rows(16, 1), vectors.gather_rows(8, 1)
_gather_4, _gather_2, _gather_1 = vectors.gather_rows(4, 2), vectors.gather_rows(2, 4), vectors.gather_rows(1, 4)
_put_4, _put_1 = vectors.finish_rows(4, add=False), vectors.finish_rows(1, add=False)
_add_4, _add_1 = vectors.finish_rows(4, add=True), vectors.finish_rows(1, add=True)
_put_gathered_4, _put_gathered_1 = (vectors.finish_rows(count, add=False, gathered=True) for count in (4, 1))
_add_gathered_4, _add_gathered_1 = (vectors.finish_rows(count, add=True, gathered=True) for count in (4, 1))
_yield: Any = numba.types.ExternalFunction("sched_yield", numba.types.int32()) if numba else None

# Plain numbers: compiled code knows no enumerations of fields.
_WEIGHT, _OUTPUTS, _INPUTS, _CORRECTION, _SCALE = (int(field) for field in list(Field)[:5])
_COLUMNS, _IN_FLOAT, _FLOAT, _SHRINK, _BIAS, _GROUP = (int(field) for field in list(Field)[5:])
_QKV, _OUT, _GATE_UP, _DOWN = (int(part) for part in list(Part)[:4])
_NORM, _MLP_NORM, _QUERY_NORM, _KEY_NORM, _WINDOW = (int(part) for part in list(Part)[4:])


@compiled(ELEMENTS)
def _meet(shared, threads):
    """Wait until all threads are here."""
    if threads == 1:
        return
    arrived, round_ = shared.ctypes.data, shared.ctypes.data + 64
    mine = load_shared(round_)
    if fetch_add(arrived, 1) == threads - 1:
        fetch_add(arrived, -threads)
        fetch_add(round_, 1)
        return
    looks = 0
    while load_shared(round_) == mine:
        relax()
        looks += 1
        if looks % SPINS == 0:
            _yield()


@compiled(ELEMENTS)
def _multiply(me, threads, linear, arenas, work, tokens, target_TW, add):
    """This thread's columns of rounded rows · weight + bias, written to `target` or added to it."""
    # As many rows at a time as stay in the cache while the weights go by, in whole registers' worth.
    at_once = max(MOST_ROWS, NEAR // work[0].shape[1] // MOST_ROWS * MOST_ROWS)
    for first in range(0, tokens, at_once):
        _multiply_rows(me, threads, linear, arenas, work, (first, min(tokens, first + at_once)), target_TW, add)


@compiled(ELEMENTS)
def _multiply_rows(me, threads, linear, arenas, work, between, target_TW, add):
    """`_multiply` of the rows between two."""
    bytes_, floats, ints = arenas
    quantized_TW, step_GT, exact_TM, sums = work
    weights, inputs, group = bytes_.ctypes.data + linear[_WEIGHT], linear[_INPUTS], linear[_GROUP]
    outputs, in_float, gathered = linear[_OUTPUTS], linear[_IN_FLOAT], group < inputs
    blocks, apart, sum_ = outputs // LANES, inputs * LANES, sums.ctypes.data
    stride, first_row = quantized_TW.shape[1], quantized_TW.ctypes.data
    target, target_stride = target_TW.ctypes.data, target_TW.shape[1] * SINGLE
    step, step_stride = step_GT.ctypes.data, step_GT.shape[1] * SINGLE
    exact, exact_stride = exact_TM.ctypes.data, exact_TM.shape[1] * SINGLE
    block, last = blocks * me // threads, blocks * (me + 1) // threads
    while block < last:
        pair = min(PAIR, last - block) if between[1] - between[0] > MOST_ROWS else 1
        row, end = between
        while row < end:
            left, place = end - row, first_row + row * stride
            count = 8 if left >= 8 else 4 if left >= 4 else 2 if left >= 2 else 1
            if left >= MOST_ROWS and pair == 1:
                count = MOST_ROWS
            together = pair if count == 8 else 1
            for b in range(block, block + pair, together):
                column = weights + b * apart
                correction_N = ints.ctypes.data + (linear[_CORRECTION] + b * LANES) * SINGLE
                if gathered:
                    at = 0
                    for g in range(-(-inputs // group)):
                        quads, steps_T = min(group, inputs - at) // 4, step + g * step_stride + row * SINGLE
                        behind = (sum_, correction_N + g * outputs * SINGLE, steps_T, int(g == 0))
                        _gather(count, together, place + at, stride, column + at * LANES, apart, quads, behind)
                        at += group
                else:
                    _dot(count, together, place, stride, column, apart, inputs // 4, sum_)
                each = 4 if count >= 4 else 1
                for number in range(together * count // each):
                    t, begin = row + number * each % count, (b + number * each // count) * LANES
                    rest = (
                        ints.ctypes.data + (linear[_CORRECTION] + begin) * SINGLE,
                        floats.ctypes.data + (linear[_SCALE] + begin) * SINGLE,
                        step + t * SINGLE,
                        exact + t * exact_stride,
                        exact_stride,
                        floats.ctypes.data + (linear[_FLOAT] + begin * in_float) * SINGLE,
                        in_float,
                        floats.ctypes.data + (linear[_BIAS] + begin) * SINGLE if linear[_BIAS] >= 0 else 0,
                        target + t * target_stride + begin * SINGLE,
                        target_stride,
                    )
                    _finish(each, add, gathered, sum_ + number * each * LANES * SINGLE, rest)
            row += count
        block += pair


@compiled(ELEMENTS)
def _dot(count, pair, place, stride, column, apart, quads, sum_):
    """Integer sums of so many rows."""
    if count == 8 and pair == PAIR:
        _dot_8_pair(place, stride, column, apart, quads, sum_)
    elif count == 16:
        _dot_16(place, stride, column, apart, quads, sum_)
    elif count == 8:
        _dot_8(place, stride, column, apart, quads, sum_)
    elif count == 4:
        _dot_4(place, stride, column, apart, quads, sum_)
    elif count == 2:
        _dot_2(place, stride, column, apart, quads, sum_)
    else:
        _dot_1(place, stride, column, apart, quads, sum_)


@compiled(ELEMENTS)
def _gather(count, pair, place, stride, column, apart, quads, behind):
    """Sums of so many rows with their steps; `behind` are the last arguments of `vectors.gather_rows`."""
    if count == 8 and pair == PAIR:
        _gather_8_pair(place, stride, column, apart, quads, *behind)
    elif count == 16:
        _gather_16(place, stride, column, apart, quads, *behind)
    elif count == 8:
        _gather_8(place, stride, column, apart, quads, *behind)
    elif count == 4:
        _gather_4(place, stride, column, apart, quads, *behind)
    elif count == 2:
        _gather_2(place, stride, column, apart, quads, *behind)
    else:
        _gather_1(place, stride, column, apart, quads, *behind)


@compiled(ELEMENTS)
def _finish(count, add, gathered, sum_, rest):
    """Outputs of four rows or one; `rest` are the last arguments of `vectors.finish_rows`."""
    if count == 4 and gathered:
        if add:
            _add_gathered_4(sum_, *rest)
        else:
            _put_gathered_4(sum_, *rest)
    elif count == 4:
        if add:
            _add_4(sum_, *rest)
        else:
            _put_4(sum_, *rest)
    elif gathered:
        if add:
            _add_gathered_1(sum_, *rest)
        else:
            _put_gathered_1(sum_, *rest)
    elif add:
        _add_1(sum_, *rest)
    else:
        _put_1(sum_, *rest)


@compiled(ELEMENTS)
def _round_row(t, row_K, linear, arenas, work, spare):
    """Row `t` of what is multiplied next."""
    _, floats, ints = arenas
    quantized_TW, step_GT, exact_TM, _ = work
    width = linear[_INPUTS]
    shrink_K = floats[linear[_SHRINK] : linear[_SHRINK] + width]
    columns_M = ints[linear[_COLUMNS] : linear[_COLUMNS] + linear[_IN_FLOAT]]
    quantized_K, step_G = quantized_TW[t, :width], step_GT[: -(-width // linear[_GROUP]), t]
    rows.quantize(row_K, shrink_K, columns_M, linear[_GROUP], spare[:width], quantized_K, exact_TM[t], step_G)


@compiled(ELEMENTS)
def _place_heads(t, layer, row, arenas, model, heads_TW, cosine_TD, sine_TD, slots_T, caches):
    """Norm and rotate a row's heads; keys and values go to their slot."""
    _, floats, _ = arenas
    _, heads, kv_heads, dim, _, epsilon, _ = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    for head in range(heads + kv_heads):
        head_D = heads_TW[t, head * dim : (head + 1) * dim]
        weight = row[_QUERY_NORM] if head < heads else row[_KEY_NORM]
        if weight >= 0:
            rows.norm(head_D, floats[weight : weight + dim], epsilon, head_D)
        rows.rotate(head_D, cosine_TD[t], sine_TD[t])
    size = values_LPSHD.shape[2]
    page, slot = slots_T[t] // size, slots_T[t] % size
    # Without scales there is no layer of them either.
    scales = len(key_scale_LPHS) > 0
    for head in range(kv_heads):
        key = (heads + head) * dim
        value = key + kv_heads * dim
        key_D = keys_LPHND[layer, page, head, slot // LANES, :, slot % LANES]
        value_D = values_LPSHD[layer, page, slot, head]
        key_scales = key_scale_LPHS[layer, page] if scales else np.empty((0, 0), np.float32)
        value_scales = value_scale_LPHS[layer, page] if scales else np.empty((0, 0), np.float32)
        rows.store(heads_TW[t, key : key + dim], key_D, key_scales, head, slot)
        rows.store(heads_TW[t, value : value + dim], value_D, value_scales, head, slot)


@compiled(ELEMENTS)
def _attend(me, threads, layer, row, model, heads_TW, caches, seen, scratch, attended_TA):
    """This thread's share of the blocks of rows and of their heads."""
    _, heads, kv_heads, dim, _, _, scaling = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    table_BM, sequence_T, context_T, block_U = seen
    scores_QL, query_QD, out_QD = scratch
    groups = heads // kv_heads
    scales = len(key_scale_LPHS) > 0
    nothing = np.empty((0, 0, 0), np.float32)
    key_scales, value_scales = (key_scale_LPHS[layer], value_scale_LPHS[layer]) if scales else (nothing, nothing)
    unit = 0
    for u in range(len(block_U) - 1):
        t, count = block_U[u], block_U[u + 1] - block_U[u]
        # Single rows of which there are enough are computed with all heads at once. Later rows of a sequence see more:
        # dealt in turns, all threads get as much to do.
        at_once = kv_heads if count == 1 and len(block_U) > threads else 1
        for head in range(0, kv_heads, at_once):
            unit += 1
            if unit % threads != me:
                continue
            queries = at_once * count * groups
            for q in range(queries):
                at = (head + q // (count * groups)) * groups + q % groups
                query_QD[q] = heads_TW[t + q % (count * groups) // groups, at * dim : (at + 1) * dim]
            attend_rows(
                query_QD[:queries],
                keys_LPHND[layer],
                values_LPSHD[layer],
                key_scales,
                value_scales,
                table_BM[sequence_T[t]],
                context_T[t],
                row[_WINDOW],
                (head, head + at_once),
                count,
                scaling,
                scores_QL,
                out_QD[:queries],
            )
            for q in range(queries):
                at = (head + q // (count * groups)) * groups + q % groups
                attended_TA[t + q % (count * groups) // groups, at * dim : (at + 1) * dim] = out_QD[q]


def _program(version: str) -> Any:
    """`advance`, compiled. What is kept on disk is known by `version`, as Numba looks at one source file alone."""

    def advance(me, threads, shared, arenas, table, model, x_TC, rotary, slots_T, caches, seen, buffers, logits):
        """All layers and the head.

        `model` is (features, heads, kv heads, head dim, activation, epsilon, scaling); for the others see `Decoder`.
        """
        if version == "":
            return
        features, heads, _, dim, activation, epsilon, _ = model
        cosine_TD, sine_TD = rotary
        quantized_TW, step_GT, exact_TM, sums_XRN, wide_TW, attended_TA, scores_XQL, query_XQD, out_XQD = buffers
        rows_R, logits_RV = logits
        floats = arenas[1]
        tokens, layers = len(x_TC), len(table) - 1
        work = (quantized_TW, step_GT, exact_TM, sums_XRN[me])
        scratch = (scores_XQL[me], query_XQD[me], out_XQD[me])
        widest = quantized_TW.shape[1]
        spare, gated, normed = (
            np.empty(widest, np.float32),
            np.empty(widest, np.float32),
            np.empty(features, np.float32),
        )
        for layer in range(layers):
            row = table[layer]
            for t in range(me, tokens, threads):
                rows.norm(x_TC[t], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
                _round_row(t, normed, row[_QKV:_OUT], arenas, work, spare)
            _meet(shared, threads)
            _multiply(me, threads, row[_QKV:_OUT], arenas, work, tokens, wide_TW, False)
            _meet(shared, threads)
            for t in range(me, tokens, threads):
                _place_heads(t, layer, row, arenas, model, wide_TW, cosine_TD, sine_TD, slots_T, caches)
            _meet(shared, threads)
            _attend(me, threads, layer, row, model, wide_TW, caches, seen, scratch, attended_TA)
            _meet(shared, threads)
            for t in range(me, tokens, threads):
                _round_row(t, attended_TA[t, : heads * dim], row[_OUT:_GATE_UP], arenas, work, spare)
            _meet(shared, threads)
            _multiply(me, threads, row[_OUT:_GATE_UP], arenas, work, tokens, x_TC, True)
            _meet(shared, threads)
            for t in range(me, tokens, threads):
                rows.norm(x_TC[t], floats[row[_MLP_NORM] : row[_MLP_NORM] + features], epsilon, normed)
                _round_row(t, normed, row[_GATE_UP:_DOWN], arenas, work, spare)
            _meet(shared, threads)
            _multiply(me, threads, row[_GATE_UP:_DOWN], arenas, work, tokens, wide_TW, False)
            _meet(shared, threads)
            inner = row[_DOWN + _INPUTS]
            for t in range(me, tokens, threads):
                if activation == SILU:
                    rows.gate_silu(wide_TW[t, : 2 * inner], gated[:inner])
                else:
                    rows.gate_gelu(wide_TW[t, : 2 * inner], gated[:inner])
                _round_row(t, gated[:inner], row[_DOWN:_NORM], arenas, work, spare)
            _meet(shared, threads)
            _multiply(me, threads, row[_DOWN:_NORM], arenas, work, tokens, x_TC, True)
            _meet(shared, threads)
        row = table[layers]
        for r in range(me, len(rows_R), threads):
            rows.norm(x_TC[rows_R[r]], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
            _round_row(r, normed, row[_QKV:_OUT], arenas, work, spare)
        _meet(shared, threads)
        _multiply(me, threads, row[_QKV:_OUT], arenas, work, len(rows_R), logits_RV, False)

    return compiled(ELEMENTS)(advance)


def _version() -> str:
    sources = ("cpu.py", "rows.py", "lanes.py", "attend.py", "blocks.py", "vectors.py", "machine.py")
    return hashlib.sha256(b"".join((Path(__file__).parent / name).read_bytes() for name in sources)).hexdigest()


advance = _program(_version())
