"""The GEMM of a linear layer, as compiled code: cuts rows and blocks of columns into tiles and runs them.

activations [rows, inputs] · weights [inputs, outputs] + bias, with quantized activations and packed weights as in
`layout`. The arithmetic of a tile is in `cpu.dot_products`. Knows neither threads nor what a layer is for.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu import dot_products
from tessera_kernels.cpu.compiled import ELEMENTWISE, subroutine
from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import F16_BYTES, F32_BYTES
from tessera_kernels.int8_decoder.layout import LinearField

TILE_ROWS = 16
"""Rows of a tile with one block of columns: one register of accumulators each. Fastest where each weight comes from
memory once, that is for at most this many rows (a decode step)."""
PAIR_TILE_ROWS, PAIR_BLOCKS = 8, 2
"""Rows and blocks of columns of the other full tile. It has as many accumulators and loads half as many activations for
each product. Faster where weights are read again for more rows and come from a cache (a prompt), slower where they come
from memory."""
L2_ACTIVATION_BYTES = 3 << 17
"""Bytes of quantized activations that stay in the L2 cache while weights and outputs pass by: 384 KiB, chosen to leave
them room. With it prompts of all lengths run at the speed of short ones (`loadtests/IDEAS.md`)."""

_tile_16_sums, _epilogue_4_sums = dot_products.tile_sums(16, 1), dot_products.sums_epilogue(4)
_tile_8x2, _tile_8 = dot_products.tile(8, 1, PAIR_BLOCKS), dot_products.tile(8, 1)
_tile_4, _tile_2, _tile_1 = dot_products.tile(4, 2), dot_products.tile(2, 4), dot_products.tile(1, 4)
_group_8x2 = dot_products.group_tile(8, 1, PAIR_BLOCKS)
_group_16, _group_8 = dot_products.group_tile(16, 1), dot_products.group_tile(8, 1)
_group_4, _group_2, _group_1 = (
    dot_products.group_tile(4, 2),
    dot_products.group_tile(2, 4),
    dot_products.group_tile(1, 4),
)
_epilogue_4x2, _epilogue_4 = dot_products.group_epilogue(4, PAIR_BLOCKS), dot_products.group_epilogue(4, 1)
_epilogue_1x2, _epilogue_1 = dot_products.group_epilogue(1, PAIR_BLOCKS), dot_products.group_epilogue(1, 1)

# Plain integers: compiled code knows no enumerations of fields.
_WEIGHT, _OUTPUTS, _INPUTS, _GROUP, _EPILOGUE = (int(field) for field in list(LinearField)[:5])
_OUTLIERS = int(LinearField.OUTLIERS)


@subroutine(ELEMENTWISE)
def multiply(columns, rows, linear, weights, work, target_TW, add):
    """Write activations · weights + bias for a range of rows and of blocks of columns, or add it to the target.

    Args:
        columns: first block of 16 columns, and the one behind the last.
        rows: first row, and the one behind the last.
        linear: int64 fields of the layer, indexed by `layout.LinearField`.
        weights: int8 arena of packed weights.
        work: quantized activations (uint8 [T, W]), their scales (float32 [groups, T]), outlier activations (float32
            [T, M]), and scratch for sums (float32 [`TILE_ROWS` · columns]).
        target_TW: float32 [T, outputs or wider].
        add: whether the result is added to the target instead of replacing it.
    """
    # Rows in passes whose activations stay in the L2 cache while all weights of `columns` pass by.
    pass_rows = rows_per_pass(linear[_INPUTS])
    for first in range(rows[0], rows[1], pass_rows):
        between = (first, min(rows[1], first + pass_rows))
        grouped = linear[_GROUP] < linear[_INPUTS]
        if not grouped:
            _multiply_rows(columns, linear, weights, work, between, target_TW, add)
        elif between[1] - between[0] <= TILE_ROWS:
            # Weights are read in the order of memory: a group's activations serve all columns before the next group.
            _multiply_grouped(columns, 1, linear, weights, work, between, target_TW, add)
        else:
            for block in range(columns[0], columns[1], PAIR_BLOCKS):
                pair = (block, min(columns[1], block + PAIR_BLOCKS))
                for row in range(between[0], between[1], PAIR_TILE_ROWS):
                    some = (row, min(between[1], row + PAIR_TILE_ROWS))
                    _multiply_grouped(pair, PAIR_BLOCKS, linear, weights, work, some, target_TW, add)


@subroutine(ELEMENTWISE)
def column_blocks_of(outputs, thread, threads):
    """The first block of 16 columns that a thread computes, and the one behind its last."""
    blocks = outputs // LANES
    return blocks * thread // threads, blocks * (thread + 1) // threads


@subroutine(ELEMENTWISE)
def rows_per_pass(width):
    """Rows of `width` bytes that fit `L2_ACTIVATION_BYTES`: a multiple of `TILE_ROWS`, at least one tile."""
    return max(TILE_ROWS, L2_ACTIVATION_BYTES // width // TILE_ROWS * TILE_ROWS)


@subroutine(ELEMENTWISE)
def _tile_rows(left, blocks):
    """Rows of the next tile, if `left` rows and `blocks` blocks of columns are left."""
    if left >= TILE_ROWS and blocks == 1:
        return TILE_ROWS
    return PAIR_TILE_ROWS if left >= PAIR_TILE_ROWS else 4 if left >= 4 else 2 if left >= 2 else 1


@subroutine(ELEMENTWISE)
def _epilogue_bytes(linear):
    """Bytes of the epilogue data of a block of columns: see `layout.packed`."""
    return LANES * (2 * F32_BYTES + linear[_OUTLIERS] * F16_BYTES)


@subroutine(ELEMENTWISE)
def _epilogue_parameters(linear, data, data_stride, work, t, b, target_TW, add):
    """The epilogue's parameters for a tile that begins at row `t` and block `b`: see `dot_products.group_epilogue`."""
    outliers_TM = work[2]
    stride = target_TW.shape[1] * F32_BYTES
    return (
        data,
        data_stride,
        outliers_TM.ctypes.data + t * outliers_TM.shape[1] * F32_BYTES,
        outliers_TM.shape[1] * F32_BYTES,
        linear[_OUTLIERS],
        target_TW.ctypes.data + t * stride + b * LANES * F32_BYTES,
        stride,
        np.int64(add),
    )


@subroutine(ELEMENTWISE)
def _multiply_rows(columns, linear, weights, work, between, target_TW, add):
    """`multiply` for a layer with one scale a row: each tile runs from the activations to the outputs."""
    quantized_TW, scale_GT, _, sums = work
    inputs = linear[_INPUTS]
    # A record has the weights and the compensation of a block of columns, then its epilogue data.
    epilogue_at = inputs * LANES + LANES * F32_BYTES
    record, stride, quads = epilogue_at + _epilogue_bytes(linear), quantized_TW.shape[1], inputs // 4
    activations, scales, sums_at = quantized_TW.ctypes.data, scale_GT.ctypes.data, sums.ctypes.data
    block, last = columns
    while block < last:
        pair = min(PAIR_BLOCKS, last - block) if between[1] - between[0] > TILE_ROWS else 1
        row, end = between
        while row < end:
            count = _tile_rows(end - row, pair)
            together = pair if count == PAIR_TILE_ROWS else 1
            for b in range(block, block + pair, together):
                column = weights.ctypes.data + linear[_WEIGHT] + b * record
                epilogue = column + epilogue_at
                if count == TILE_ROWS:
                    # Sums go through memory, and outputs are written four rows at a time: 16 lines that are written
                    # at once hold up the weights that come from memory.
                    _tile_16_sums(activations + row * stride, stride, column, record, quads, sums_at)
                    for t in range(0, TILE_ROWS, 4):
                        given = (sums_at + t * LANES * F32_BYTES, scales + (row + t) * F32_BYTES)
                        _run_sums_epilogue(
                            given, _epilogue_parameters(linear, epilogue, record, work, row + t, b, target_TW, add)
                        )
                    continue
                tile = (activations + row * stride, stride, column, record, quads, scales + row * F32_BYTES)
                parameters = _epilogue_parameters(linear, epilogue, record, work, row, b, target_TW, add)
                _run_tile(count, together, tile, parameters)
            row += count
        block += pair


@subroutine(ELEMENTWISE)
def _run_sums_epilogue(given, epilogue):
    """Outputs of four rows from their int32 sums; parameters of `dot_products.sums_epilogue`."""
    _epilogue_4_sums(*given, *epilogue)


@subroutine(ELEMENTWISE)
def _multiply_grouped(columns, pair, linear, weights, work, between, target_TW, add):
    """`multiply` for a layer with a scale for each row and group of inputs, of at most `TILE_ROWS` rows.

    Partial sums of all groups are added up in float32 scratch; the epilogue follows behind the last group. `pair` is
    the number of blocks of columns that are computed before the next rows, 1 or `PAIR_BLOCKS`.
    """
    quantized_TW, scale_GT, _, sums = work
    inputs, group, stride = linear[_INPUTS], linear[_GROUP], quantized_TW.shape[1]
    first, last = columns
    sums_stride = (last - first) * LANES * F32_BYTES
    group_weights = weights.ctypes.data + linear[_WEIGHT]
    for g in range(-(-inputs // group)):
        at = g * group
        quads = min(group, inputs - at) // 4
        record = (quads + 1) * LANES * F32_BYTES
        scales = scale_GT.ctypes.data + g * scale_GT.shape[1] * F32_BYTES
        for block in range(first, last, pair):
            some = min(pair, last - block)
            row, end = between
            while row < end:
                count = _tile_rows(end - row, some)
                together = some if count == PAIR_TILE_ROWS else 1
                for b in range(block, block + some, together):
                    _run_group_tile(
                        count,
                        together,
                        (
                            quantized_TW.ctypes.data + row * stride + at,
                            stride,
                            group_weights + b * record,
                            record,
                            quads,
                            scales + row * F32_BYTES,
                            sums.ctypes.data + (row - between[0]) * sums_stride + (b - first) * LANES * F32_BYTES,
                            sums_stride,
                            np.int64(g == 0),
                        ),
                    )
                row += count
        group_weights += linear[_OUTPUTS] // LANES * record
    epilogue, record = weights.ctypes.data + linear[_EPILOGUE], _epilogue_bytes(linear)
    row, end = between
    while row < end:
        count = 4 if end - row >= 4 else 1
        for b in range(first, last, PAIR_BLOCKS):
            given = (
                sums.ctypes.data + (row - between[0]) * sums_stride + (b - first) * LANES * F32_BYTES,
                sums_stride,
            )
            parameters = _epilogue_parameters(linear, epilogue + b * record, record, work, row, b, target_TW, add)
            _run_group_epilogue(count, min(PAIR_BLOCKS, last - b), given, parameters)
        row += count


@subroutine(ELEMENTWISE)
def _run_tile(count, blocks, given, epilogue):
    """A tile of `count` rows and `blocks` blocks of columns; parameters of `dot_products.tile`."""
    if count == 8 and blocks == PAIR_BLOCKS:
        _tile_8x2(*given, *epilogue)
    elif count == 8:
        _tile_8(*given, *epilogue)
    elif count == 4:
        _tile_4(*given, *epilogue)
    elif count == 2:
        _tile_2(*given, *epilogue)
    else:
        _tile_1(*given, *epilogue)


@subroutine(ELEMENTWISE)
def _run_group_tile(count, blocks, given):
    """Partial sums of `count` rows and `blocks` blocks of columns; parameters of `dot_products.group_tile`."""
    if count == 8 and blocks == PAIR_BLOCKS:
        _group_8x2(*given)
    elif count == 16:
        _group_16(*given)
    elif count == 8:
        _group_8(*given)
    elif count == 4:
        _group_4(*given)
    elif count == 2:
        _group_2(*given)
    else:
        _group_1(*given)


@subroutine(ELEMENTWISE)
def _run_group_epilogue(count, blocks, given, epilogue):
    """Outputs of `count` rows and `blocks` blocks of columns; parameters of `dot_products.group_epilogue`."""
    if count == 4 and blocks == PAIR_BLOCKS:
        _epilogue_4x2(*given, *epilogue)
    elif count == 4:
        _epilogue_4(*given, *epilogue)
    elif blocks == PAIR_BLOCKS:
        _epilogue_1x2(*given, *epilogue)
    else:
        _epilogue_1(*given, *epilogue)
