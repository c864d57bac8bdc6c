"""A step of a whole decoder in one compiled call, run by several threads that synchronize at barriers.

Starting some thousand small operations from Python takes most of a decode step on a CPU; here nothing is started.
Every thread runs `decoder_step` with the same arguments and computes its own range of rows, of output columns or of
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
from tessera_kernels.cpu.instructions import LANES, atomic_load, fetch_add, pause
from tessera_kernels.cpu.vector_loops import copy_vectors
from tessera_kernels.int8_decoder import row_ops
from tessera_kernels.int8_decoder.attention import attend_rows
from tessera_kernels.int8_decoder.gemm import column_blocks_of, multiply
from tessera_kernels.int8_decoder.layout import LayerField, LinearField

BARRIER_SPINS = 2_000
"""Iterations of a barrier's spin loop before the thread yields its core to the operating system."""
ROW_PARALLEL_MIN_ROWS = 128
"""Rows per thread from which on work is split by rows, not by output columns. A thread then reads all weights, which it
can do in the time that so many rows take, and meets the other threads at attention only. Found by timing prompts on two
cores without a shared third-level cache (`loadtests/IDEAS.md`)."""
SILU, GELU = 0, 1
"""Activation of the gate, as an integer for compiled code."""

_copy = copy_vectors()
_yield: Any = numba.types.ExternalFunction("sched_yield", numba.types.int32()) if numba else None

# Plain integers: compiled code knows no enumerations of fields.
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
_QKV, _OUT, _GATE_UP, _DOWN = (int(field) for field in list(LayerField)[:4])
_NORM, _MLP_NORM, _QUERY_NORM, _KEY_NORM, _WINDOW = (int(field) for field in list(LayerField)[4:])


@subroutine(ELEMENTWISE)
def _barrier(shared, threads):
    """Wait until all threads are here. `shared` is int64 of two cache lines: threads that arrived, and a generation."""
    if threads == 1:
        return
    arrived, generation = shared.ctypes.data, shared.ctypes.data + 64
    mine = atomic_load(generation)
    if fetch_add(arrived, 1) == threads - 1:
        fetch_add(arrived, -threads)
        fetch_add(generation, 1)
        return
    spins = 0
    while atomic_load(generation) == mine:
        pause()
        spins += 1
        if spins % BARRIER_SPINS == 0:
            _yield()


@subroutine(ELEMENTWISE)
def _quantize_row(t, row_K, linear, arenas, work, scratch):
    """Quantize a float32 row as row `t` of the activations of the next linear layer."""
    _, floats, ints = arenas
    quantized_TW, scale_GT, outliers_TM, _ = work
    width = linear[_INPUTS]
    smoothing_K = floats[linear[_SMOOTHING] : linear[_SMOOTHING] + width]
    outlier_columns_M = ints[linear[_OUTLIER_COLUMNS] : linear[_OUTLIER_COLUMNS] + linear[_OUTLIERS]]
    group = linear[_GROUP]
    quantized_K, scale_G = quantized_TW[t, :width], scale_GT[: -(-width // group), t]
    row_ops.quantize(
        row_K, smoothing_K, outlier_columns_M, group, scratch[:width], quantized_K, outliers_TM[t], scale_G
    )


@subroutine(ELEMENTWISE)
def _store_heads(t, layer, row, arenas, model, heads_TW, cosine_TD, sine_TD, slots_T, caches):
    """Norm and rotate the query and key heads of row `t` in place, and write its keys and values to their slot."""
    _, floats, _ = arenas
    _, heads, kv_heads, dim, _, epsilon, _ = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    keys_end, values_end = (heads + kv_heads) * dim, (heads + 2 * kv_heads) * dim
    if row[_QUERY_NORM] >= 0 or row[_KEY_NORM] >= 0:
        for head in range(heads + kv_heads):
            head_D = heads_TW[t, head * dim : (head + 1) * dim]
            weight = row[_QUERY_NORM] if head < heads else row[_KEY_NORM]
            if weight >= 0:
                row_ops.norm(head_D, floats[weight : weight + dim], epsilon, head_D)
    row_ops.rotate(heads_TW[t, :keys_end], dim, cosine_TD[t], sine_TD[t])
    size = values_LPSHD.shape[2]
    page, slot = slots_T[t] // size, slots_T[t] % size
    key_HD, value_HD = keys_LPHND[layer, page, :, slot // LANES, :, slot % LANES], values_LPSHD[layer, page, slot]
    key_W, value_W = heads_TW[t, heads * dim : keys_end], heads_TW[t, keys_end:values_end]
    if key_scale_LPHS.size > 0:
        row_ops.store_int8(key_W, key_HD, key_scale_LPHS[layer, page, :, slot])
        row_ops.store_int8(value_W, value_HD, value_scale_LPHS[layer, page, :, slot])
    else:
        row_ops.store(key_W, key_HD)
        row_ops.store(value_W, value_HD)


@subroutine(ELEMENTWISE)
def _attend(thread, threads, layer, row, model, heads_TW, caches, batch, scratch, attended_TA):
    """Attention of all row blocks; this thread computes every `threads`-th pair of a row block and a key-value head."""
    kv_heads, block_U = model[2], batch[3]
    unit = 0
    for u in range(len(block_U) - 1):
        t, count = block_U[u], block_U[u + 1] - block_U[u]
        # A block of one row is computed with all heads at once if there are enough blocks for all threads. Later rows
        # of a sequence see more positions: round-robin gives all threads about the same work.
        unit_heads = kv_heads if count == 1 and len(block_U) > threads else 1
        for head in range(0, kv_heads, unit_heads):
            unit += 1
            if unit % threads == thread:
                between = (head, head + unit_heads)
                _attend_block(t, count, between, layer, row, model, heads_TW, caches, batch, scratch, attended_TA)


@subroutine(ELEMENTWISE)
def _attend_block(t, count, between, layer, row, model, heads_TW, caches, batch, scratch, attended_TA):
    """Attention of rows `t` … `t + count - 1` of one sequence, for the query heads of a range of key-value heads.

    `between` is the first key-value head and the one behind the last.
    """
    _, heads, kv_heads, dim, _, _, scaling = model
    keys_LPHND, values_LPSHD, key_scale_LPHS, value_scale_LPHS = caches
    table_BM, sequence_T, context_T, _ = batch
    scores_QL, sums_Q, query_QD, out_QD = scratch
    groups, head = heads // kv_heads, between[0]
    queries, head_width = (between[1] - head) * count * groups, groups * dim
    if count == 1:
        # Queries and results of a single row are contiguous where they are: nothing is copied.
        begin, end = head * head_width, between[1] * head_width
        some_QD, to_QD = heads_TW[t, begin:end].reshape(queries, dim), attended_TA[t, begin:end].reshape(queries, dim)
    else:
        some_QD, to_QD = query_QD[:queries], out_QD[:queries]
        for h in range(head, between[1]):
            for r in range(count):
                place = ((h - head) * count + r) * groups
                _copy(heads_TW[t + r, h * head_width :].ctypes.data, head_width // LANES, query_QD[place:].ctypes.data)
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
        sums_Q,
        to_QD,
    )
    if count == 1:
        return
    for h in range(head, between[1]):
        for r in range(count):
            place = ((h - head) * count + r) * groups
            _copy(out_QD[place:].ctypes.data, head_width // LANES, attended_TA[t + r, h * head_width :].ctypes.data)


def _program(version: str) -> Any:
    """`decoder_step`, compiled.

    Numba's cache key covers one source file and the function's closure; `version`, a checksum of all sources that are
    compiled into the step, is part of the closure.
    """

    def decoder_step(
        thread, threads, shared, arenas, table, model, x_TC, rotary, slots_T, caches, batch, buffers, logits
    ):
        """All layers, the final norm and the head, as one thread of `threads` runs them.

        Args:
            thread, threads, shared: from `cpu.team.Team.run`.
            arenas: packed weights int8, parameters float32, outlier columns int32; see `layout.Arenas`.
            table: int64, a row for each layer by `layout.LayerField`, and one for the final norm and the head.
            model: features, query heads, key-value heads, head dim, activation, epsilon, scaling.
            x_TC: float32 hidden states, updated in place.
            rotary: cosines and sines, float32 [T, D] each.
            slots_T: int64, the cache slot of each token.
            caches: keys, values, key scales and value scales of all layers, as `attention` reads them.
            batch: page table [B, M]; of each token its sequence and the positions that it sees; first rows of the row
                blocks for attention, with the number of tokens at the end.
            buffers: scratch shared by all threads (quantized activations, their scales, outlier activations), scratch
                for sums of each thread, outputs of linear layers, outputs of attention, and attention's scratch of
                each thread (scores, sums of weights, queries, outputs).
            logits: rows that get logits, logits [R, V], and for each thread and row the index and the value of the
                largest logit among its columns.
        """
        if version == "":
            return
        features, heads, kv_heads, dim, activation, epsilon, _ = model
        cosine_TD, sine_TD = rotary
        quantized_TW, scale_GT, outliers_TM, sums_XS, wide_TW, attended_TA, scratches = buffers
        scores_XQL, sums_XQ, query_XQD, out_XQD = scratches
        rows_R, logits_RV, place_XR, largest_XR = logits
        floats = arenas[1]
        tokens, layers = len(x_TC), len(table) - 1
        work = (quantized_TW, scale_GT, outliers_TM, sums_XS[thread])
        scratch = (scores_XQL[thread], sums_XQ[thread], query_XQD[thread], out_XQD[thread])
        widest = quantized_TW.shape[1]
        row_scratch, gated, normed = (
            np.empty(widest, np.float32),
            np.empty(widest, np.float32),
            np.empty(features, np.float32),
        )
        # Row-wise work: a contiguous range of rows for each thread, so that threads do not write to the same lines.
        first, end = tokens * thread // threads, tokens * (thread + 1) // threads
        # Linear layers: with many rows a thread computes all columns of its own rows and needs no barrier, for it reads
        # only what it has written. With few rows each thread computes a range of the columns of all rows.
        by_rows = tokens >= ROW_PARALLEL_MIN_ROWS * threads
        gemm_rows, column_thread, column_threads = ((first, end), 0, 1) if by_rows else ((0, tokens), thread, threads)
        # A decode step with at least one sequence for each thread: every sequence has one row.
        single_rows = threads <= tokens == len(batch[3]) - 1
        for layer in range(layers):
            row = table[layer]
            for t in range(first, end):
                row_ops.norm(x_TC[t], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
                _quantize_row(t, normed, row[_QKV:_OUT], arenas, work, row_scratch)
            _barrier(shared, column_threads)
            columns = column_blocks_of(row[_QKV + _OUTPUTS], column_thread, column_threads)
            multiply(columns, gemm_rows, row[_QKV:_OUT], arenas[0], work, wide_TW, False)
            _barrier(shared, column_threads)
            if single_rows:
                # One thread stores a row's key and value, attends and quantizes: no barriers in between.
                for t in range(first, end) if by_rows else range(thread, tokens, threads):
                    _store_heads(t, layer, row, arenas, model, wide_TW, cosine_TD, sine_TD, slots_T, caches)
                    every = (0, kv_heads)
                    _attend_block(t, 1, every, layer, row, model, wide_TW, caches, batch, scratch, attended_TA)
                    _quantize_row(t, attended_TA[t, : heads * dim], row[_OUT:_GATE_UP], arenas, work, row_scratch)
            else:
                for t in range(first, end):
                    _store_heads(t, layer, row, arenas, model, wide_TW, cosine_TD, sine_TD, slots_T, caches)
                _barrier(shared, threads)
                _attend(thread, threads, layer, row, model, wide_TW, caches, batch, scratch, attended_TA)
                _barrier(shared, threads)
                for t in range(first, end):
                    _quantize_row(t, attended_TA[t, : heads * dim], row[_OUT:_GATE_UP], arenas, work, row_scratch)
            _barrier(shared, column_threads)
            columns = column_blocks_of(row[_OUT + _OUTPUTS], column_thread, column_threads)
            multiply(columns, gemm_rows, row[_OUT:_GATE_UP], arenas[0], work, x_TC, True)
            _barrier(shared, column_threads)
            for t in range(first, end):
                row_ops.norm(x_TC[t], floats[row[_MLP_NORM] : row[_MLP_NORM] + features], epsilon, normed)
                _quantize_row(t, normed, row[_GATE_UP:_DOWN], arenas, work, row_scratch)
            _barrier(shared, column_threads)
            columns = column_blocks_of(row[_GATE_UP + _OUTPUTS], column_thread, column_threads)
            multiply(columns, gemm_rows, row[_GATE_UP:_DOWN], arenas[0], work, wide_TW, False)
            _barrier(shared, column_threads)
            inner = row[_DOWN + _INPUTS]
            for t in range(first, end):
                if activation == SILU:
                    row_ops.gate_silu(wide_TW[t, : 2 * inner], gated[:inner])
                else:
                    row_ops.gate_gelu(wide_TW[t, : 2 * inner], gated[:inner])
                _quantize_row(t, gated[:inner], row[_DOWN:_NORM], arenas, work, row_scratch)
            _barrier(shared, column_threads)
            columns = column_blocks_of(row[_DOWN + _OUTPUTS], column_thread, column_threads)
            multiply(columns, gemm_rows, row[_DOWN:_NORM], arenas[0], work, x_TC, True)
            _barrier(shared, column_threads)
        if by_rows:
            _barrier(shared, threads)
        row = table[layers]
        for r in range(len(rows_R) * thread // threads, len(rows_R) * (thread + 1) // threads):
            row_ops.norm(x_TC[rows_R[r]], floats[row[_NORM] : row[_NORM] + features], epsilon, normed)
            _quantize_row(r, normed, row[_QKV:_OUT], arenas, work, row_scratch)
        _barrier(shared, threads)
        columns = column_blocks_of(row[_QKV + _OUTPUTS], thread, threads)
        multiply(columns, (0, len(rows_R)), row[_QKV:_OUT], arenas[0], work, logits_RV, False)
        begin, end = columns
        for r in range(len(rows_R)):
            place_XR[thread, r], largest_XR[thread, r] = row_ops.argmax(logits_RV[r], begin * LANES, end * LANES)

    return compiled(ELEMENTWISE)(decoder_step)


def _version() -> str:
    """SHA-256 of all sources that are compiled into the step: this package, `cpu`, and a constant of `int8_linear`."""
    here = Path(__file__).parent
    folders = [here, here.parent / "cpu"]
    sources = [source for folder in folders for source in sorted(folder.glob("*.py"))]
    sources.append(here.parent / "int8_linear" / "weight.py")
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


decoder_step = _program(_version())
