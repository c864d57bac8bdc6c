"""Rounded rows times a linear layer's weights, in compiled code: what is left of it to choose is which rows and which
columns at once. The arithmetic is in `vectors`. Does not know layers.
"""
# Compiled functions have no types that Python could check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from tessera_kernels.cpu import dot_products as vectors
from tessera_kernels.cpu.compiled import ELEMENTWISE, subroutine
from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.int8_decoder.layout import LinearField

MOST_ROWS, HALF, PAIR = 16, 8, 2
"""Rows that are multiplied at once, one register for the sums of each; or half as many by so many blocks of columns, so
that what is read of a row serves two products. That is faster where weights are read again for more rows, and slower
where each weight comes from memory once."""
NEAR = 3 << 17
"""Bytes of rows that a second-level cache keeps beside what else comes by."""
SINGLE, SHORT = 4, 2
"""Bytes of a float32 or an int32, and of a float16."""

_dot_16, _finish_4 = vectors.dot_rows(16, 1), vectors.finish_rows(4)
_tile_8_pair, _tile_8 = vectors.tile_rows(8, 1, PAIR), vectors.tile_rows(8, 1)
_tile_4, _tile_2, _tile_1 = vectors.tile_rows(4, 2), vectors.tile_rows(2, 4), vectors.tile_rows(1, 4)
_gather_8_pair = vectors.gather_rows(8, 1, PAIR)
_gather_16, _gather_8 = vectors.gather_rows(16, 1), vectors.gather_rows(8, 1)
_gather_4, _gather_2, _gather_1 = vectors.gather_rows(4, 2), vectors.gather_rows(2, 4), vectors.gather_rows(1, 4)
_settle_4_pair, _settle_4 = vectors.settle_rows(4, PAIR), vectors.settle_rows(4, 1)
_settle_1_pair, _settle_1 = vectors.settle_rows(1, PAIR), vectors.settle_rows(1, 1)

# Plain numbers: compiled code knows no enumerations of fields.
_WEIGHT, _OUTPUTS, _INPUTS, _GROUP, _EPILOGUE = (int(field) for field in list(LinearField)[:5])
_OUTLIERS = int(LinearField.OUTLIERS)


@subroutine(ELEMENTWISE)
def multiply(columns, rows, linear, weights, work, target_TW, add):
    """Some blocks of columns of some rounded rows · weight + bias, written to `target` or added to it.

    Args:
        columns, rows: the first and the last + 1.
        linear: the layer's fields, `layout.LinearField`.
        weights: the arena of bytes.
        work: rounded rows, their steps, their inputs in float, and room for sums.
        target_TW: float32.
        add: whether it is added.
    """
    # As many rows at a time as stay in the cache while the weights go by, in whole registers' worth.
    at_once = rows_at_once(linear[_INPUTS])
    for first in range(rows[0], rows[1], at_once):
        between = (first, min(rows[1], first + at_once))
        several = linear[_GROUP] < linear[_INPUTS]
        if not several:
            _multiply_rows(columns, linear, weights, work, between, target_TW, add)
        elif between[1] - between[0] <= MOST_ROWS:
            # Weights are read in their order, and what is read of a group serves all columns before the next one does.
            _multiply_gathered(columns, 1, linear, weights, work, between, target_TW, add)
        else:
            for block in range(columns[0], columns[1], PAIR):
                pair = (block, min(columns[1], block + PAIR))
                for row in range(between[0], between[1], HALF):
                    some = (row, min(between[1], row + HALF))
                    _multiply_gathered(pair, PAIR, linear, weights, work, some, target_TW, add)


@subroutine(ELEMENTWISE)
def columns_of(outputs, me, threads):
    """The first and the last + 1 of the blocks of sixteen columns that a thread computes."""
    blocks = outputs // LANES
    return blocks * me // threads, blocks * (me + 1) // threads


@subroutine(ELEMENTWISE)
def rows_at_once(width):
    """Rows of so many bytes that are multiplied with all weights before the next ones are."""
    return max(MOST_ROWS, NEAR // width // MOST_ROWS * MOST_ROWS)


@subroutine(ELEMENTWISE)
def _together(left, blocks):
    """Rows of `left` that are multiplied at once with so many blocks."""
    if left >= MOST_ROWS and blocks == 1:
        return MOST_ROWS
    return HALF if left >= HALF else 4 if left >= 4 else 2 if left >= 2 else 1


@subroutine(ELEMENTWISE)
def _of_rest(linear):
    """Bytes of the rest of a record: see `layout.packed`."""
    return LANES * (2 * SINGLE + linear[_OUTLIERS] * SHORT)


@subroutine(ELEMENTWISE)
def _put(linear, rest, apart, work, t, b, target_TW, add):
    """The last arguments of `vectors.tile_rows` and of `settle_rows`, for row `t` and block `b` with its rest."""
    exact_TM = work[2]
    stride = target_TW.shape[1] * SINGLE
    return (
        rest,
        apart,
        exact_TM.ctypes.data + t * exact_TM.shape[1] * SINGLE,
        exact_TM.shape[1] * SINGLE,
        linear[_OUTLIERS],
        target_TW.ctypes.data + t * stride + b * LANES * SINGLE,
        stride,
        np.int64(add),
    )


@subroutine(ELEMENTWISE)
def _multiply_rows(columns, linear, weights, work, between, target_TW, add):
    """`multiply` of some blocks of columns and rows with one step for all inputs."""
    quantized_TW, step_GT, _, sums = work
    inputs = linear[_INPUTS]
    behind = inputs * LANES + LANES * SINGLE
    apart, stride, quads = behind + _of_rest(linear), quantized_TW.shape[1], inputs // 4
    rows, steps, sum_ = quantized_TW.ctypes.data, step_GT.ctypes.data, sums.ctypes.data
    block, last = columns
    while block < last:
        pair = min(PAIR, last - block) if between[1] - between[0] > MOST_ROWS else 1
        row, end = between
        while row < end:
            count = _together(end - row, pair)
            together = pair if count == HALF else 1
            for b in range(block, block + pair, together):
                column = weights.ctypes.data + linear[_WEIGHT] + b * apart
                if count == MOST_ROWS:
                    # Outputs are written in parts: all at once, they hold up the weights that come from memory.
                    _dot_16(rows + row * stride, stride, column, apart, quads, sum_)
                    for t in range(0, MOST_ROWS, 4):
                        given = (sum_ + t * LANES * SINGLE, steps + (row + t) * SINGLE)
                        _finish(given, _put(linear, column + behind, apart, work, row + t, b, target_TW, add))
                    continue
                tile = (rows + row * stride, stride, column, apart, quads, steps + row * SINGLE)
                _tile(count, together, tile, _put(linear, column + behind, apart, work, row, b, target_TW, add))
            row += count
        block += pair


@subroutine(ELEMENTWISE)
def _finish(given, rest):
    """Outputs of four rows; arguments of `vectors.finish_rows`."""
    _finish_4(*given, *rest)


@subroutine(ELEMENTWISE)
def _multiply_gathered(columns, pair, linear, weights, work, between, target_TW, add):
    """`multiply` of some blocks of columns, `pair` of them at once, and of up to sixteen rows, with steps by group."""
    quantized_TW, step_GT, _, sums = work
    inputs, group, stride = linear[_INPUTS], linear[_GROUP], quantized_TW.shape[1]
    first, last = columns
    sums_stride = (last - first) * LANES * SINGLE
    of_group = weights.ctypes.data + linear[_WEIGHT]
    for g in range(-(-inputs // group)):
        at = g * group
        quads = min(group, inputs - at) // 4
        apart = (quads + 1) * LANES * SINGLE
        steps = step_GT.ctypes.data + g * step_GT.shape[1] * SINGLE
        for block in range(first, last, pair):
            some = min(pair, last - block)
            row, end = between
            while row < end:
                count = _together(end - row, some)
                together = some if count == HALF else 1
                for b in range(block, block + some, together):
                    _gather(
                        count,
                        together,
                        (
                            quantized_TW.ctypes.data + row * stride + at,
                            stride,
                            of_group + b * apart,
                            apart,
                            quads,
                            steps + row * SINGLE,
                            sums.ctypes.data + (row - between[0]) * sums_stride + (b - first) * LANES * SINGLE,
                            sums_stride,
                            np.int64(g == 0),
                        ),
                    )
                row += count
        of_group += linear[_OUTPUTS] // LANES * apart
    rest, apart = weights.ctypes.data + linear[_EPILOGUE], _of_rest(linear)
    row, end = between
    while row < end:
        count = 4 if end - row >= 4 else 1
        for b in range(first, last, PAIR):
            given = (sums.ctypes.data + (row - between[0]) * sums_stride + (b - first) * LANES * SINGLE, sums_stride)
            of_block = _put(linear, rest + b * apart, apart, work, row, b, target_TW, add)
            _settle(count, min(PAIR, last - b), given, of_block)
        row += count


@subroutine(ELEMENTWISE)
def _tile(count, pair, given, rest):
    """Outputs of so many rows; arguments of `vectors.tile_rows`."""
    if count == 8 and pair == PAIR:
        _tile_8_pair(*given, *rest)
    elif count == 8:
        _tile_8(*given, *rest)
    elif count == 4:
        _tile_4(*given, *rest)
    elif count == 2:
        _tile_2(*given, *rest)
    else:
        _tile_1(*given, *rest)


@subroutine(ELEMENTWISE)
def _gather(count, pair, given):
    """Sums of so many rows with their steps; arguments of `vectors.gather_rows`."""
    if count == 8 and pair == PAIR:
        _gather_8_pair(*given)
    elif count == 16:
        _gather_16(*given)
    elif count == 8:
        _gather_8(*given)
    elif count == 4:
        _gather_4(*given)
    elif count == 2:
        _gather_2(*given)
    else:
        _gather_1(*given)


@subroutine(ELEMENTWISE)
def _settle(count, pair, given, rest):
    """Outputs of so many rows; arguments of `vectors.settle_rows`."""
    if count == 4 and pair == PAIR:
        _settle_4_pair(*given, *rest)
    elif count == 4:
        _settle_4(*given, *rest)
    elif pair == PAIR:
        _settle_1_pair(*given, *rest)
    else:
        _settle_1(*given, *rest)
