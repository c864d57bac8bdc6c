"""Tiles of an int8 GEMM with AVX-512 VNNI, as LLVM IR: accumulate, dequantize, epilogue.

A tile is some rows of activations (unsigned bytes with zero point 128) times one or more blocks of 16 output columns
(signed bytes). `vpdpbusd` takes a quad, four consecutive inputs: it multiplies the quad of a row, broadcast to 16
lanes, with the quad of 16 columns, and adds to 16 int32 accumulators. The layout of the weights is described in
`int8_decoder.layout.packed`.

Each function here returns a function for compiled code; its docstring lists the parameters, which are addresses,
strides in bytes and counts. A row's result has the same bits whatever the number of rows in its tile, because its
elements are added in the same order. Knows no layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import F16_BYTES, F32_BYTES, VECTOR_BYTES, Value, VectorCode, vector_function

WEIGHT_PREFETCH_BYTES = 64 * VECTOR_BYTES
"""Prefetch distance in the weights, in bytes: 64 cache lines ahead of the line that is multiplied, one prefetch for
each line. Found by timing tiles of 16 rows on a core with memory that no cache holds (`loadtests/IDEAS.md`): memory
answers in the time in which so many lines are multiplied. The hardware prefetcher alone does worse as soon as outputs
are written between the weights, each row's to another place."""
PREFETCH_MIN_ROWS = 8
"""Rows of a tile from which on weights are prefetched. Tiles of fewer rows wait for memory either way, and there the
hardware prefetcher is enough."""
EPILOGUE_PARAMETERS = 8
"""Parameters of an epilogue; see `group_epilogue`."""
EPILOGUE_ROWS = 4
"""Rows whose outputs the epilogue computes at once: enough independent accumulators to hide the latency of FMA."""


def tile(rows: int, unroll: int, blocks: int = 1) -> Any:
    """A whole tile: accumulate over all inputs, dequantize, epilogue; for layers with one scale a row.

    Parameters: activations (uint8), bytes between its rows, weights (int8 [quads, 16, 4], then int32 [16] of
    compensation), bytes between blocks of columns, quads, row scales (float32 [rows]), then the epilogue's parameters
    from the epilogue data on; see `group_epilogue`.

    Args:
        rows: rows of the tile.
        unroll: quads for each iteration of the loop, with accumulators of their own, so that no `vpdpbusd` waits for
            the one before; divides the quads.
        blocks: blocks of columns of the tile; a loaded activation is multiplied with all of them.
    """

    def write(
        code: VectorCode,
        activations: Value,
        row_stride: Value,
        weights: Value,
        block_stride: Value,
        quads: Value,
        row_scales: Value,
        *epilogue: Value,
    ) -> None:
        sums = _accumulate(code, rows, unroll, blocks, (activations, row_stride, weights, block_stride, quads))
        _epilogue(code, rows, blocks, _dequantize(code, rows, sums, row_scales), epilogue)

    return vector_function(6 + EPILOGUE_PARAMETERS, write)


def tile_sums(rows: int, unroll: int) -> Any:
    """The first half of `tile` for one block of columns: accumulate, and write the int32 sums to memory.

    Parameters: activations, bytes between its rows, weights, bytes between blocks of columns, quads, sums (int32
    [rows, 16], written).
    """

    def write(
        code: VectorCode,
        activations: Value,
        row_stride: Value,
        weights: Value,
        block_stride: Value,
        quads: Value,
        target: Value,
    ) -> None:
        sums = _accumulate(code, rows, unroll, 1, (activations, row_stride, weights, block_stride, quads))
        for row, total in enumerate(sums):
            code.store(total, code.address(target, row * VECTOR_BYTES))

    return vector_function(6, write)


def sums_epilogue(rows: int) -> Any:
    """The second half of `tile` for one block of columns: dequantize int32 sums, epilogue.

    Parameters: sums (int32 [rows, 16]), row scales (float32 [rows]), then the epilogue's parameters.
    """

    def write(code: VectorCode, sums: Value, row_scales: Value, *epilogue: Value) -> None:
        totals = [code.load(code.i32x16, code.address(sums, row * VECTOR_BYTES)) for row in range(rows)]
        _epilogue(code, rows, 1, _dequantize(code, rows, totals, row_scales), epilogue)

    return vector_function(2 + EPILOGUE_PARAMETERS, write)


def group_tile(rows: int, unroll: int, blocks: int = 1) -> Any:
    """A tile over one group of inputs, for layers with a scale for each row and group: partial += sums · row scale.

    Parameters: activations of the group, bytes between its rows, weights of the group (as for `tile`), bytes between
    blocks of columns, quads of the group, row scales of the group (float32 [rows]), partial sums (float32
    [rows, blocks, 16], updated), bytes between its rows, first (1 if the partial sums begin at zero with this group,
    else 0). `Args` as for `tile`.
    """

    def write(
        code: VectorCode,
        activations: Value,
        row_stride: Value,
        weights: Value,
        block_stride: Value,
        quads: Value,
        row_scales: Value,
        partial: Value,
        partial_stride: Value,
        first: Value,
    ) -> None:
        builder = code.builder
        begins = builder.icmp_signed("!=", first, code.i64(0))
        sums = _accumulate(code, rows, unroll, blocks, (activations, row_stride, weights, block_stride, quads))
        for index, total in enumerate(sums):
            block, row = divmod(index, rows)
            place = code.address(partial, (partial_stride, row), block * VECTOR_BYTES)
            before = builder.select(begins, code.zeros(code.f32x16), code.load(code.f32x16, place))
            row_scale = code.load(code.f32, code.address(row_scales, F32_BYTES * row))
            scale = code.broadcast(row_scale, code.f32x16)
            code.store(code.fma(builder.sitofp(total, code.f32x16), scale, before), place)

    return vector_function(9, write)


def group_epilogue(rows: int, blocks: int) -> Any:
    """Outputs of a tile: partial sums over all groups · column scale + outliers · their weights + bias.

    Parameters: partial sums (float32 [rows, blocks, 16]), bytes between its rows, then the epilogue's parameters:

    1. epilogue data of the first block: scale and bias (float32 [16] each), outlier weights (float16 [outliers, 16]);
    2. bytes from a block's epilogue data to the next block's;
    3. outlier activations (float32 [rows, outliers]);
    4. bytes between rows of the outlier activations;
    5. outliers, an even number;
    6. target (float32), where outputs go;
    7. bytes between rows of the target;
    8. add (1 if outputs are added to the target, 0 if they replace it).
    """

    def write(code: VectorCode, partial: Value, partial_stride: Value, *epilogue: Value) -> None:
        values = [
            code.load(code.f32x16, code.address(partial, (partial_stride, row), block * VECTOR_BYTES))
            for block in range(blocks)
            for row in range(rows)
        ]
        _epilogue(code, rows, blocks, values, epilogue)

    return vector_function(2 + EPILOGUE_PARAMETERS, write)


def _dequantize(code: VectorCode, rows: int, sums: list[Value], row_scales: Value) -> list[Value]:
    """int32 sums, by block and then by row, as float32 times the scales of the rows."""
    scales = [
        code.broadcast(code.load(code.f32, code.address(row_scales, F32_BYTES * row)), code.f32x16)
        for row in range(rows)
    ]
    return [
        code.builder.fmul(code.builder.sitofp(total, code.f32x16), scales[index % rows])
        for index, total in enumerate(sums)
    ]


def _accumulate(
    code: VectorCode, rows: int, unroll: int, blocks: int, given: tuple[Value, Value, Value, Value, Value]
) -> list[Value]:
    """int32 sums of a tile, by block and then by row, with the compensation subtracted."""
    activations, row_stride, weights, block_stride, quads = given
    prefetches = blocks == 1 and rows >= PREFETCH_MIN_ROWS

    def body(index: Value, sums: list[Value]) -> list[Value]:
        updated = list(sums)
        for step in range(unroll):
            quad = code.address(code.i64(step), (index, unroll))
            columns = [
                code.load(code.i32x16, code.address(weights, (quad, VECTOR_BYTES), (block_stride, block)))
                for block in range(blocks)
            ]
            if prefetches:
                code.prefetch(code.address(weights, (quad, VECTOR_BYTES), WEIGHT_PREFETCH_BYTES))
            for row in range(rows):
                inputs = code.load(code.i32, code.address(activations, (row_stride, row), (quad, 4)))
                inputs_16 = code.broadcast(inputs, code.i32x16)
                for block in range(blocks):
                    place = (step * blocks + block) * rows + row
                    updated[place] = code.vpdpbusd(sums[place], inputs_16, columns[block])
        return updated

    iterations = code.builder.sdiv(quads, code.i64(unroll))
    tile_size = blocks * rows
    sums = code.loop(iterations, [code.zeros(code.i32x16)] * (tile_size * unroll), body)
    totals = sums[:tile_size]
    for step in range(1, unroll):
        totals = [code.builder.add(total, sums[step * tile_size + place]) for place, total in enumerate(totals)]
    behind_weights = code.address(weights, (quads, VECTOR_BYTES))
    if prefetches:
        # One prefetch for each other line of the record (compensation, epilogue data) keeps the distance constant.
        def prefetch_rest(index: Value, _: list[Value]) -> list[Value]:
            code.prefetch(code.address(behind_weights, (index, VECTOR_BYTES), WEIGHT_PREFETCH_BYTES))
            return []

        lines = code.builder.sub(code.builder.sdiv(block_stride, code.i64(VECTOR_BYTES)), quads)
        code.loop(lines, [], prefetch_rest)
    compensation = [
        code.load(code.i32x16, code.address(behind_weights, (block_stride, block))) for block in range(blocks)
    ]
    return [code.builder.sub(total, compensation[place // rows]) for place, total in enumerate(totals)]


def _epilogue(code: VectorCode, rows: int, blocks: int, values: list[Value], given: Sequence[Value]) -> None:
    """Compute and write outputs from dequantized sums, by block and then by row, `EPILOGUE_ROWS` rows at a time."""
    for first in range(0, rows, EPILOGUE_ROWS):
        some = range(first, min(rows, first + EPILOGUE_ROWS))
        of_rows = [values[block * rows + row] for block in range(blocks) for row in some]
        _epilogue_rows(code, some, blocks, of_rows, given)


def _epilogue_rows(code: VectorCode, rows: range, blocks: int, values: list[Value], given: Sequence[Value]) -> None:
    data, data_stride, outliers, outlier_stride, outlier_count, target, target_stride, add = given
    builder = code.builder
    block_data = [code.address(data, (data_stride, block)) for block in range(blocks)]
    scales = [code.load(code.f32x16, one) for one in block_data]
    values = [builder.fmul(value, scales[index // len(rows)]) for index, value in enumerate(values)]

    # Even and odd outliers have accumulators of their own, so that no FMA waits for the one before.
    def body(index: Value, before: list[Value]) -> list[Value]:
        updated: list[Value] = []
        for odd in range(2):
            place = code.address(code.i64(odd), (index, 2))
            halves = [
                code.load(code.f16x16, code.address(one, 2 * VECTOR_BYTES, (place, LANES * F16_BYTES)))
                for one in block_data
            ]
            weights = [builder.fpext(one, code.f32x16) for one in halves]
            inputs = [
                code.load(code.f32, code.address(outliers, (outlier_stride, row), (place, F32_BYTES))) for row in rows
            ]
            inputs_16 = [code.broadcast(one, code.f32x16) for one in inputs]
            updated += [
                code.fma(one, weights[block], before[len(updated) + block * len(rows) + position])
                for block in range(blocks)
                for position, one in enumerate(inputs_16)
            ]
        return updated

    pairs = builder.sdiv(outlier_count, code.i64(2))
    sides = code.loop(pairs, [*values, *[code.zeros(code.f32x16)] * len(values)], body)
    sums = [builder.fadd(even, odd) for even, odd in zip(sides[: len(values)], sides[len(values) :], strict=True)]
    results, targets = [], []
    for block, one in enumerate(block_data):
        bias = code.load(code.f32x16, code.address(one, VECTOR_BYTES))
        results += [builder.fadd(total, bias) for total in sums[block * len(rows) : (block + 1) * len(rows)]]
        targets += [code.address(target, (target_stride, row), block * VECTOR_BYTES) for row in rows]
    with builder.if_else(builder.icmp_signed("!=", add, code.i64(0))) as (adds, replaces):
        with adds:
            for result, place in zip(results, targets, strict=True):
                code.store(builder.fadd(result, code.load(code.f32x16, place)), place)
        with replaces:
            for result, place in zip(results, targets, strict=True):
                code.store(result, place)
