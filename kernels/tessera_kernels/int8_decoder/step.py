"""A step of a whole decoder in one compiled call, by several threads that meet at barriers.

What Python and torch take to start some thousand small operations is most of a decode step on a CPU; here nothing is
started. Every thread runs `decoder_step` with the same arguments on its own range of rows, of output columns or of
heads.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from tessera_kernels.cpu.compiled import ELEMENTWISE, compiled, numba, subroutine
from tessera_kernels.cpu.instructions import LANES, fetch_add, load_shared, relax
from tessera_kernels.cpu.vector_loops import copy_vectors
from tessera_kernels.int8_decoder import row_ops
from tessera_kernels.int8_decoder.attention import attend_rows
from tessera_kernels.int8_decoder.gemm import columns_of, multiply
from tessera_kernels.int8_decoder.layout import LayerField, LinearField

SPINS = 2_000
"""Looks at the barrier before the processor is given to somebody else."""
ROW_PARALLEL_MIN_ROWS = 128
"""Of a thread, from which on it computes its rows with all weights, which it can read in the meantime."""
SILU, GELU = 0, 1

_copy = copy_vectors()
_yield: Any = numba.types.ExternalFunction("sched_yield", numba.types.int32()) if numba else None

# Plain numbers: compiled code knows no enumerations of fields.
_OUTPUTS, _INPUTS, _OUTLIER_COLUMNS, _OUTLIERS, _SMOOTHING, _GROUP = (
    int(field)
    for field in (
        LinearField.OUTPUTS,
        LinearField.INPUTS,
        LinearField.OUTLIER_COLUMNS,
        LinearField.OUTLIERS,
        LinearField.SMOOTHING,
        LinearField.GROUP,
    )
)
_QKV, _OUT, _GATE_UP, _DOWN = (int(part) for part in list(LayerField)[:4])
_NORM, _MLP_NORM, _QUERY_NORM, _KEY_NORM, _WINDOW = (int(part) for part in list(LayerField)[4:])


@subroutine(ELEMENTWISE)
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


@subroutine(ELEMENTWISE)
def _round_row(t, row_K, linear, arenas, work, spare):
    """Row `t` of what is multiplied next."""
    _, floats, ints = arenas
    quantized_TW, step_GT, exact_TM, _ = work
    width = linear[_INPUTS]
    smoothing_K = floats[linear[_SMOOTHING] : linear[_SMOOTHING] + width]
    outlier_columns_M = ints[linear[_OUTLIER_COLUMNS] : linear[_OUTLIER_COLUMNS] + linear[_OUTLIERS]]
    quantized_K, step_G = quantized_TW[t, :width], step_GT[: -(-width // linear[_GROUP]), t]
    row_ops.quantize(
        row_K, smoothing_K, outlier_columns_M, linear[_GROUP], spare[:width], quantized_K, exact_TM[t], step_G
    )


@subroutine(ELEMENTWISE)
def _place_heads(t, layer, row, arenas, model, heads_TW, cosine_TD, sine_TD, slots_T, caches):
    """Norm and rotate a row's heads; keys and values go to their slot."""
    _, floats, _ = arenas
    _, heads, kv_heads, dim, _, epsilon, _ = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    both, behind = (heads + kv_heads) * dim, (heads + 2 * kv_heads) * dim
    if row[_QUERY_NORM] >= 0 or row[_KEY_NORM] >= 0:
        for head in range(heads + kv_heads):
            head_D = heads_TW[t, head * dim : (head + 1) * dim]
            weight = row[_QUERY_NORM] if head < heads else row[_KEY_NORM]
            if weight >= 0:
                row_ops.norm(head_D, floats[weight : weight + dim], epsilon, head_D)
    row_ops.rotate(heads_TW[t, :both], dim, cosine_TD[t], sine_TD[t])
    size = values_LPSHD.shape[2]
    page, slot = slots_T[t] // size, slots_T[t] % size
    key_HD, value_HD = keys_LPHND[layer, page, :, slot // LANES, :, slot % LANES], values_LPSHD[layer, page, slot]
    key_W, value_W = heads_TW[t, heads * dim : both], heads_TW[t, both:behind]
    if key_scale_LPHS.size > 0:
        row_ops.store_rounded(key_W, key_HD, key_scale_LPHS[layer, page, :, slot])
        row_ops.store_rounded(value_W, value_HD, value_scale_LPHS[layer, page, :, slot])
    else:
        row_ops.store(key_W, key_HD)
        row_ops.store(value_W, value_HD)


@subroutine(ELEMENTWISE)
def _attend(me, threads, layer, row, model, heads_TW, caches, seen, scratch, attended_TA):
    """This thread's share of the blocks of rows and of their heads."""
    kv_heads, block_U = model[2], seen[3]
    unit = 0
    for u in range(len(block_U) - 1):
        t, count = block_U[u], block_U[u + 1] - block_U[u]
        # Single rows of which there are enough are computed with all heads at once. Later rows of a sequence see more:
        # dealt in turns, all threads get as much to do.
        at_once = kv_heads if count == 1 and len(block_U) > threads else 1
        for head in range(0, kv_heads, at_once):
            unit += 1
            if unit % threads == me:
                between = (head, head + at_once)
                _attend_block(t, count, between, layer, row, model, heads_TW, caches, seen, scratch, attended_TA)


@subroutine(ELEMENTWISE)
def _attend_block(t, count, between, layer, row, model, heads_TW, caches, seen, scratch, attended_TA):
    """Rows `t` … `t + count - 1` of one sequence, with those of their heads that are between two of keys and values."""
    _, heads, kv_heads, dim, _, _, scaling = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    table_BM, sequence_T, context_T, _ = seen
    scores_QL, totals_Q, query_QD, out_QD = scratch
    groups, head = heads // kv_heads, between[0]
    queries, wide = (between[1] - head) * count * groups, groups * dim
    if count == 1:
        # As they lie, and where they are to lie.
        begin, end = head * wide, between[1] * wide
        some_QD, to_QD = heads_TW[t, begin:end].reshape(queries, dim), attended_TA[t, begin:end].reshape(queries, dim)
    else:
        some_QD, to_QD = query_QD[:queries], out_QD[:queries]
        for h in range(head, between[1]):
            for r in range(count):
                place = ((h - head) * count + r) * groups
                _copy(heads_TW[t + r, h * wide :].ctypes.data, wide // LANES, query_QD[place:].ctypes.data)
    attend_rows(
        some_QD,
        keys_LPHND[layer],
        values_LPSHD[layer],
        key_scale_LPHS[layer],
        value_scale_LPHS[layer],
        table_BM[sequence_T[t]],
        context_T[t],
        row[_WINDOW],
        between,
        count,
        scaling,
        scores_QL,
        totals_Q,
        to_QD,
    )
    if count == 1:
        return
    for h in range(head, between[1]):
        for r in range(count):
            place = ((h - head) * count + r) * groups
            _copy(out_QD[place:].ctypes.data, wide // LANES, attended_TA[t + r, h * wide :].ctypes.data)


def _program(version: str) -> Any:
    """`decoder_step`, compiled. What is kept on disk is known by `version`, as Numba looks at one source file alone."""

    def decoder_step(me, threads, shared, arenas, table, model, x_TC, rotary, slots_T, caches, seen, buffers, logits):
        """All layers and the head.

        `model` is (features, heads, kv heads, head dim, activation, epsilon, scaling); for the others see `Decoder`.
        """
        if version == "":
            return
        features, heads, kv_heads, dim, activation, epsilon, _ = model
        cosine_TD, sine_TD = rotary
        quantized_TW, step_GT, exact_TM, sums_XS, wide_TW, attended_TA, scratches = buffers
        scores_XQL, totals_XQ, query_XQD, out_XQD = scratches
        rows_R, logits_RV, place_XR, largest_XR = logits
        floats = arenas[1]
        tokens, layers = len(x_TC), len(table) - 1
        work = (quantized_TW, step_GT, exact_TM, sums_XS[me])
        scratch = (scores_XQL[me], totals_XQ[me], query_XQD[me], out_XQD[me])
        widest = quantized_TW.shape[1]
        spare, gated, normed = (
            np.empty(widest, np.float32),
            np.empty(widest, np.float32),
            np.empty(features, np.float32),
        )
        # Neighbours write to the same lines of the cache: a thread's rows are one piece.
        first, end = tokens * me // threads, tokens * (me + 1) // threads
        # Of many rows each thread computes its own with all weights, and meets the others at attention alone: what one
        # has written is far from the other. Of few rows each computes all with its share of the weights.
        apart = tokens >= ROW_PARALLEL_MIN_ROWS * threads
        mine, share, among = ((first, end), 0, 1) if apart else ((0, tokens), me, threads)
        # One row of each sequence, and enough of them for all threads.
        alone = threads <= tokens == len(seen[3]) - 1
        for layer in range(layers):
            row = table[layer]
            for t in range(first, end):
                row_ops.norm(x_TC[t], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
                _round_row(t, normed, row[_QKV:_OUT], arenas, work, spare)
            _meet(shared, among)
            columns = columns_of(row[_QKV + _OUTPUTS], share, among)
            multiply(columns, mine, row[_QKV:_OUT], arenas[0], work, wide_TW, False)
            _meet(shared, among)
            if alone:
                # Nobody waits for anybody between a row's keys and what it makes of its sequence.
                for t in range(first, end) if apart else range(me, tokens, threads):
                    _place_heads(t, layer, row, arenas, model, wide_TW, cosine_TD, sine_TD, slots_T, caches)
                    every = (0, kv_heads)
                    _attend_block(t, 1, every, layer, row, model, wide_TW, caches, seen, scratch, attended_TA)
                    _round_row(t, attended_TA[t, : heads * dim], row[_OUT:_GATE_UP], arenas, work, spare)
            else:
                for t in range(first, end):
                    _place_heads(t, layer, row, arenas, model, wide_TW, cosine_TD, sine_TD, slots_T, caches)
                _meet(shared, threads)
                _attend(me, threads, layer, row, model, wide_TW, caches, seen, scratch, attended_TA)
                _meet(shared, threads)
                for t in range(first, end):
                    _round_row(t, attended_TA[t, : heads * dim], row[_OUT:_GATE_UP], arenas, work, spare)
            _meet(shared, among)
            columns = columns_of(row[_OUT + _OUTPUTS], share, among)
            multiply(columns, mine, row[_OUT:_GATE_UP], arenas[0], work, x_TC, True)
            _meet(shared, among)
            for t in range(first, end):
                row_ops.norm(x_TC[t], floats[row[_MLP_NORM] : row[_MLP_NORM] + features], epsilon, normed)
                _round_row(t, normed, row[_GATE_UP:_DOWN], arenas, work, spare)
            _meet(shared, among)
            columns = columns_of(row[_GATE_UP + _OUTPUTS], share, among)
            multiply(columns, mine, row[_GATE_UP:_DOWN], arenas[0], work, wide_TW, False)
            _meet(shared, among)
            inner = row[_DOWN + _INPUTS]
            for t in range(first, end):
                if activation == SILU:
                    row_ops.gate_silu(wide_TW[t, : 2 * inner], gated[:inner])
                else:
                    row_ops.gate_gelu(wide_TW[t, : 2 * inner], gated[:inner])
                _round_row(t, gated[:inner], row[_DOWN:_NORM], arenas, work, spare)
            _meet(shared, among)
            columns = columns_of(row[_DOWN + _OUTPUTS], share, among)
            multiply(columns, mine, row[_DOWN:_NORM], arenas[0], work, x_TC, True)
            _meet(shared, among)
        if apart:
            _meet(shared, threads)
        row = table[layers]
        for r in range(len(rows_R) * me // threads, len(rows_R) * (me + 1) // threads):
            row_ops.norm(x_TC[rows_R[r]], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
            _round_row(r, normed, row[_QKV:_OUT], arenas, work, spare)
        _meet(shared, threads)
        columns = columns_of(row[_QKV + _OUTPUTS], me, threads)
        multiply(columns, (0, len(rows_R)), row[_QKV:_OUT], arenas[0], work, logits_RV, False)
        begin, end = columns
        for r in range(len(rows_R)):
            place_XR[me, r], largest_XR[me, r] = row_ops.likeliest(logits_RV[r], begin * LANES, end * LANES)

    return compiled(ELEMENTWISE)(decoder_step)


def _version() -> str:
    here = Path(__file__).parent
    # `cpu` is what this package is compiled from besides itself; `int8_linear.weight` gives a constant.
    folders = [here, here.parent / "cpu"]
    sources = [source for folder in folders for source in sorted(folder.glob("*.py"))]
    sources.append(here.parent / "int8_linear" / "weight.py")
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


decoder_step = _program(_version())
