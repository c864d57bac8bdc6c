"""Products of rows and columns in LLVM's own language: what the compiler would not find by itself.

All take addresses. Whatever the number of rows, the numbers of one are added in one order. Does not know layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera_kernels.cpu.llvm_ir import BYTES, Code, Value, function

AHEAD = 64 * BYTES
"""How far in front of the weights that are multiplied others are asked for, one line with each. Memory takes as long to
answer as so many lines are multiplied with sixteen rows; and a processor foresees less of them by itself as soon as
outputs are written between them, each row's to another place."""
MANY_ROWS = 8
"""Fewer wait for memory anyway, and a processor that waits foresees enough."""


def tile_rows(rows: int, unroll: int, blocks: int = 1) -> Any:
    """Rows times columns, bytes times bytes, as outputs of a linear layer.

    (rows, bytes between them, columns, bytes between blocks, quads, steps of rows [rows], then as `settle_rows` from
    the rest on). Behind the columns is what sums exceed by, int32 [16].

    Rows are unsigned, columns signed: by quad the four bytes of column 0, then those of column 1, … `unroll` sums run
    side by side, so that no instruction waits for the one before; it must divide the quads. What is read of a row is
    multiplied with `blocks` blocks of columns.
    """

    def write(
        code: Code,
        first: Value,
        stride: Value,
        columns: Value,
        apart: Value,
        quads: Value,
        row_steps: Value,
        *rest: Value,
    ) -> None:
        sums = _dots(code, rows, unroll, blocks, (first, stride, columns, apart, quads))
        _put(code, rows, blocks, _stepped(code, rows, sums, row_steps), rest)

    return function(6 + _PUT, write)


def dot_rows(rows: int, unroll: int) -> Any:
    """Rows times columns as `tile_rows`, as sums alone.

    (rows, bytes between them, columns, bytes between blocks, quads, sums int32 [rows, 16]).
    """

    def write(code: Code, first: Value, stride: Value, columns: Value, apart: Value, quads: Value, to: Value) -> None:
        sums = _dots(code, rows, unroll, 1, (first, stride, columns, apart, quads))
        for row, total in enumerate(sums):
            code.store(total, code.at(to, row * BYTES))

    return function(6, write)


def finish_rows(rows: int) -> Any:
    """From sums to outputs.

    (sums int32 [rows, 16], steps of rows [rows], then as `tile_rows`).
    """

    def write(code: Code, sums: Value, row_steps: Value, *rest: Value) -> None:
        totals = [code.load(code.words, code.at(sums, row * BYTES)) for row in range(rows)]
        _put(code, rows, 1, _stepped(code, rows, totals, row_steps), rest)

    return function(2 + _PUT, write)


def gather_rows(rows: int, unroll: int, blocks: int = 1) -> Any:
    """Rows times columns of some inputs that have steps of their own, put in: what was gathered grows.

    (rows, bytes between them, columns, bytes between blocks, quads, steps of rows [rows], gathered float32, bytes
    between its rows, whether it is to begin); otherwise as `tile_rows`.
    """

    def write(
        code: Code,
        first: Value,
        stride: Value,
        columns: Value,
        apart: Value,
        quads: Value,
        row_steps: Value,
        gathered: Value,
        gathered_stride: Value,
        begins: Value,
    ) -> None:
        builder = code.builder
        begin = builder.icmp_signed("!=", begins, code.address(0))
        sums = _dots(code, rows, unroll, blocks, (first, stride, columns, apart, quads))
        for number, total in enumerate(sums):
            block, row = divmod(number, rows)
            place = code.at(gathered, (gathered_stride, row), block * BYTES)
            before = builder.select(begin, code.zero(code.singles), code.load(code.singles, place))
            row_step = code.spread(code.load(code.single, code.at(row_steps, 4 * row)), code.singles)
            code.store(code.fused(builder.sitofp(total, code.singles), row_step, before), place)

    return function(9, write)


def settle_rows(rows: int, blocks: int) -> Any:
    """From what was gathered to outputs of a linear layer, sixteen of each row and block.

    (gathered float32 [rows, blocks, 16], bytes between its rows, the rest of a record (see `layout.packed`), bytes from
    it to the next block's, inputs in float [rows, m], bytes between these rows, m, target, bytes between its rows,
    whether the target grows by the outputs).
    """

    def write(code: Code, gathered: Value, stride: Value, *rest: Value) -> None:
        values = [
            code.load(code.singles, code.at(gathered, (stride, row), block * BYTES))
            for block in range(blocks)
            for row in range(rows)
        ]
        _put(code, rows, blocks, values, rest)

    return function(2 + _PUT, write)


def _stepped(code: Code, rows: int, sums: list[Value], row_steps: Value) -> list[Value]:
    """Sums by block, then by row, with the steps of rows."""
    steps = [code.spread(code.load(code.single, code.at(row_steps, 4 * row)), code.singles) for row in range(rows)]
    return [
        code.builder.fmul(code.builder.sitofp(total, code.singles), steps[number % rows])
        for number, total in enumerate(sums)
    ]


def _dots(
    code: Code, rows: int, unroll: int, blocks: int, given: tuple[Value, Value, Value, Value, Value]
) -> list[Value]:
    """Sums by block, then by row."""
    first, stride, columns, apart, quads = given
    asks = blocks == 1 and rows >= MANY_ROWS

    def body(index: Value, sums: list[Value]) -> list[Value]:
        grown = list(sums)
        for step in range(unroll):
            quad = code.at(code.address(step), (index, unroll))
            weights = [
                code.load(code.words, code.at(columns, (quad, BYTES), (apart, block))) for block in range(blocks)
            ]
            if asks:
                code.fetch(code.at(columns, (quad, BYTES), AHEAD))
            for row in range(rows):
                four = code.spread(code.load(code.word, code.at(first, (stride, row), (quad, 4))), code.words)
                for block in range(blocks):
                    place = (step * blocks + block) * rows + row
                    grown[place] = code.dot_bytes(sums[place], four, weights[block])
        return grown

    rounds = code.builder.sdiv(quads, code.address(unroll))
    each = blocks * rows
    sums = code.loop(rounds, [code.zero(code.words)] * (each * unroll), body)
    totals = sums[:each]
    for step in range(1, unroll):
        totals = [code.builder.add(total, sums[step * each + place]) for place, total in enumerate(totals)]
    behind = code.at(columns, (quads, BYTES))
    if asks:

        def ask(index: Value, _: list[Value]) -> list[Value]:
            code.fetch(code.at(behind, (index, BYTES), AHEAD))
            return []

        code.loop(code.builder.sub(code.builder.sdiv(apart, code.address(BYTES)), quads), [], ask)
    too_large = [code.load(code.words, code.at(behind, (apart, block))) for block in range(blocks)]
    return [code.builder.sub(total, too_large[place // rows]) for place, total in enumerate(totals)]


_PUT, _PUT_ROWS = 8, 4
"""Arguments of `_put`, and rows that it puts at once."""


def _put(code: Code, rows: int, blocks: int, values: list[Value], given: Sequence[Value]) -> None:
    """Add what is computed in float, and write outputs, sixteen of each row and block; see `settle_rows`.

    Some rows at a time: so many sums grow side by side that no instruction waits for the one before.
    """
    for first in range(0, rows, _PUT_ROWS):
        some = range(first, min(rows, first + _PUT_ROWS))
        _put_some(code, some, blocks, [values[block * rows + row] for block in range(blocks) for row in some], given)


def _put_some(code: Code, rows: range, blocks: int, values: list[Value], given: Sequence[Value]) -> None:
    rest, apart, exact, exact_stride, count, target, stride, add = given
    builder = code.builder
    rests = [code.at(rest, (apart, block)) for block in range(blocks)]
    scales = [code.load(code.singles, one) for one in rests]
    values = [builder.fmul(value, scales[number // len(rows)]) for number, value in enumerate(values)]

    def body(index: Value, before: list[Value]) -> list[Value]:
        grown: list[Value] = []
        for odd in range(2):
            place = code.at(code.address(odd), (index, 2))
            halves = [code.load(code.halves, code.at(one, 2 * BYTES, (place, BYTES // 2))) for one in rests]
            held = [builder.fpext(one, code.singles) for one in halves]
            exacts = [code.load(code.single, code.at(exact, (exact_stride, row), (place, 4))) for row in rows]
            spread = [code.spread(one, code.singles) for one in exacts]
            grown += [
                code.fused(one, held[block], before[len(grown) + block * len(rows) + at])
                for block in range(blocks)
                for at, one in enumerate(spread)
            ]
        return grown

    pairs = builder.sdiv(count, code.address(2))
    sides = code.loop(pairs, [*values, *[code.zero(code.singles)] * len(values)], body)
    sums = [builder.fadd(even, odd) for even, odd in zip(sides[: len(values)], sides[len(values) :], strict=True)]
    results, targets = [], []
    for block, one in enumerate(rests):
        bias = code.load(code.singles, code.at(one, BYTES))
        results += [builder.fadd(total, bias) for total in sums[block * len(rows) : (block + 1) * len(rows)]]
        targets += [code.at(target, (stride, row), block * BYTES) for row in rows]
    with builder.if_else(builder.icmp_signed("!=", add, code.address(0))) as (adds, writes):
        with adds:
            for result, place in zip(results, targets, strict=True):
                code.store(builder.fadd(result, code.load(code.singles, place)), place)
        with writes:
            for result, place in zip(results, targets, strict=True):
                code.store(result, place)
