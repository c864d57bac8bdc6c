"""Loops over vectors of sixteen, in LLVM's own language: what the compiler would not find by itself.

All take addresses. Whatever the number of rows, the numbers of one are added in one order. Does not know layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tessera_kernels.int8_decoder.machine import LANES, intrinsic, ir, numba_types

Value = Any
BYTES = 4 * LANES
"""Of a vector."""


class Code:
    """An LLVM builder with the types that are used here."""

    def __init__(self, builder: Any) -> None:
        llvm = ir()
        self.builder = builder
        self.word, self.address, self.single = llvm.IntType(32), llvm.IntType(64), llvm.FloatType()
        self.words = llvm.VectorType(self.word, LANES)
        self.singles = llvm.VectorType(self.single, LANES)
        self.halves = llvm.VectorType(llvm.HalfType(), LANES)
        self.octets = llvm.VectorType(llvm.IntType(8), LANES)
        self.flags = llvm.VectorType(llvm.IntType(1), LANES)
        self._llvm = llvm

    def zero(self, kind: Any) -> Value:
        """A vector of zeros."""
        return self._llvm.Constant(kind, [0 if kind is not self.singles else 0.0] * LANES)

    def whole(self, number: int) -> Value:
        """A vector of one int32."""
        return self._llvm.Constant(self.words, [number] * LANES)

    def at(self, base: Value, *offsets: Value | tuple[Value, Value | int]) -> Value:
        """An address: the base, and offsets or products of two."""
        for offset in offsets:
            if isinstance(offset, tuple):
                left, right = (self.address(one) if isinstance(one, int) else one for one in offset)
                base = self.builder.add(base, self.builder.mul(left, right))
            else:
                base = self.builder.add(base, self.address(offset) if isinstance(offset, int) else offset)
        return base

    def load(self, kind: Any, at: Value) -> Value:
        """What is at an address."""
        align = {id(self.octets): 1, id(self.halves): 2}.get(id(kind), 4)
        return self.builder.load(self.builder.inttoptr(at, kind.as_pointer()), align=align)

    def store(self, value: Value, at: Value) -> None:
        """Put something to an address."""
        align = 4 if value.type in {self.words, self.singles, self.word, self.single} else 1
        self.builder.store(value, self.builder.inttoptr(at, value.type.as_pointer()), align=align)

    def spread(self, value: Value, kind: Any) -> Value:
        """A number in all places of a vector."""
        undefined = self._llvm.Constant(kind, self._llvm.Undefined)
        first = self.builder.insert_element(undefined, value, self.word(0))
        return self.builder.shuffle_vector(first, undefined, self.zero(self.words))

    def fused(self, left: Value, right: Value, added: Value) -> Value:
        """left · right + added, rounded once."""
        kind = self._llvm.FunctionType(self.singles, [self.singles] * 3)
        function = self.builder.module.declare_intrinsic("llvm.fma.v16f32", (), kind)
        return self.builder.call(function, [left, right, added])

    def nearest(self, value: Value) -> Value:
        """The nearest whole number, the even one of two."""
        kind = self._llvm.FunctionType(self.singles, [self.singles])
        return self.builder.call(self.builder.module.declare_intrinsic("llvm.rint.v16f32", (), kind), [value])

    def largest_of(self, words: Value) -> Value:
        """Of a vector's signed numbers."""
        kind = self._llvm.FunctionType(self.word, [self.words])
        function = self.builder.module.declare_intrinsic("llvm.vector.reduce.smax.v16i32", (), kind)
        return self.builder.call(function, [words])

    def dot_bytes(self, sums: Value, unsigned: Value, signed: Value) -> Value:
        """Each sum grows by the products of its four bytes."""
        kind = self._llvm.FunctionType(self.words, [self.words] * 3)
        function = self.builder.module.declare_intrinsic("llvm.x86.avx512.vpdpbusd.512", (), kind)
        return self.builder.call(function, [sums, unsigned, signed])

    def loop(
        self, rounds: Value, initial: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """`body(index, values)` gives the next values; returns the last. `rounds` may be zero."""
        builder = self.builder
        entry = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", rounds, self.address(0)), loop, done)
        builder.position_at_end(loop)
        index = builder.phi(self.address)
        values = [builder.phi(one.type) for one in initial]
        grown = body(index, list(values))
        following, end = builder.add(index, self.address(1)), builder.block
        index.add_incoming(self.address(0), entry)
        index.add_incoming(following, end)
        for phi, first, then in zip(values, initial, grown, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(then, end)
        builder.cbranch(builder.icmp_signed("<", following, rounds), loop, done)
        builder.position_at_end(done)
        results = []
        for first, then in zip(initial, grown, strict=True):
            phi = builder.phi(first.type)
            phi.add_incoming(first, entry)
            phi.add_incoming(then, end)
            results.append(phi)
        return results


def function(arguments: int, write: Callable[..., None]) -> Any:
    """A function for compiled code of so many addresses and counts; `write(code, *arguments)` makes its body."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        write(Code(builder), *given)
        return context.get_dummy_value()

    types = numba_types()

    def typed(_context: Any, *_given: Any) -> Any:
        return types.void(*[types.intp] * arguments), generate

    # Numba counts the parameters.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["context", *(f"argument_{number}" for number in range(arguments))]
    typed.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return intrinsic(typed)


def tile_rows(rows: int, unroll: int, blocks: int = 1) -> Any:
    """Rows times columns, bytes times bytes, as outputs of a linear layer.

    (rows, bytes between them, columns, bytes between blocks, quads, what sums exceed by int32 [blocks, 16], steps of
    outputs [blocks, 16], steps of rows [rows], then as `settle_rows` from the inputs in float on).

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
        correction: Value,
        steps: Value,
        row_steps: Value,
        *rest: Value,
    ) -> None:
        sums = _dots(code, rows, unroll, blocks, (first, stride, columns, apart, quads, correction))
        values = _scaled(code, rows, sums, steps, row_steps)
        _put(code, rows, blocks, values, rest)

    return function(8 + _PUT, write)


def dot_rows(rows: int, unroll: int) -> Any:
    """Rows times columns as `tile_rows`, as sums alone.

    (rows, bytes between them, columns, quads, what sums exceed by int32 [16], sums int32 [rows, 16]).
    """

    def write(
        code: Code, first: Value, stride: Value, columns: Value, quads: Value, correction: Value, to: Value
    ) -> None:
        sums = _dots(code, rows, unroll, 1, (first, stride, columns, code.address(0), quads, correction))
        for row, total in enumerate(sums):
            code.store(total, code.at(to, row * BYTES))

    return function(6, write)


def finish_rows(rows: int) -> Any:
    """From sums to outputs.

    (sums int32 [rows, 16], steps of outputs [16], steps of rows [rows], then as `tile_rows`).
    """

    def write(code: Code, sums: Value, steps: Value, row_steps: Value, *rest: Value) -> None:
        totals = [code.load(code.words, code.at(sums, row * BYTES)) for row in range(rows)]
        _put(code, rows, 1, _scaled(code, rows, totals, steps, row_steps), rest)

    return function(3 + _PUT, write)


def gather_rows(rows: int, unroll: int, blocks: int = 1) -> Any:
    """Rows times columns of some inputs that have steps of their own, put in: what was gathered grows.

    (rows, bytes between them, columns, bytes between blocks, quads, what sums exceed by int32 [blocks, 16], steps of
    rows [rows], gathered float32, bytes between its rows, whether it is to begin); otherwise as `tile_rows`.
    """

    def write(
        code: Code,
        first: Value,
        stride: Value,
        columns: Value,
        apart: Value,
        quads: Value,
        correction: Value,
        row_steps: Value,
        gathered: Value,
        gathered_stride: Value,
        begins: Value,
    ) -> None:
        builder = code.builder
        begin = builder.icmp_signed("!=", begins, code.address(0))
        sums = _dots(code, rows, unroll, blocks, (first, stride, columns, apart, quads, correction))
        for number, total in enumerate(sums):
            block, row = divmod(number, rows)
            place = code.at(gathered, (gathered_stride, row), block * BYTES)
            before = builder.select(begin, code.zero(code.singles), code.load(code.singles, place))
            row_step = code.spread(code.load(code.single, code.at(row_steps, 4 * row)), code.singles)
            code.store(code.fused(builder.sitofp(total, code.singles), row_step, before), place)

    return function(10, write)


def settle_rows(rows: int, blocks: int) -> Any:
    """From what was gathered to outputs of a linear layer, sixteen of each row and block.

    (gathered float32 [rows, blocks, 16], bytes between its rows, steps of outputs [blocks, 16], inputs in float
    [rows, m], bytes between these rows, their weights [blocks, m, 16], m, bias [blocks, 16] or 0, target, bytes between
    its rows, whether the target grows by the outputs).
    """

    def write(code: Code, gathered: Value, stride: Value, steps: Value, *rest: Value) -> None:
        values = []
        for block in range(blocks):
            step = code.load(code.singles, code.at(steps, block * BYTES))
            places = [code.at(gathered, (stride, row), block * BYTES) for row in range(rows)]
            values += [code.builder.fmul(code.load(code.singles, place), step) for place in places]
        _put(code, rows, blocks, values, rest)

    return function(3 + _PUT, write)


def _scaled(code: Code, rows: int, sums: list[Value], steps: Value, row_steps: Value) -> list[Value]:
    """Sums by block, then by row, with the steps of outputs and of rows."""
    values = []
    for number, total in enumerate(sums):
        block, row = divmod(number, rows)
        step = code.load(code.singles, code.at(steps, block * BYTES))
        row_step = code.spread(code.load(code.single, code.at(row_steps, 4 * row)), code.singles)
        product = code.builder.fmul(code.builder.sitofp(total, code.singles), step)
        values.append(code.builder.fmul(product, row_step))
    return values


def _dots(
    code: Code, rows: int, unroll: int, blocks: int, given: tuple[Value, Value, Value, Value, Value, Value]
) -> list[Value]:
    """Sums by block, then by row."""
    first, stride, columns, apart, quads, correction = given

    def body(index: Value, sums: list[Value]) -> list[Value]:
        grown = list(sums)
        for step in range(unroll):
            quad = code.at(code.address(step), (index, unroll))
            weights = [
                code.load(code.words, code.at(columns, (quad, BYTES), (apart, block))) for block in range(blocks)
            ]
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
    too_large = [code.load(code.words, code.at(correction, block * BYTES)) for block in range(blocks)]
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
    exact, exact_stride, weights, count, bias, target, stride, add = given
    builder = code.builder

    def body(index: Value, before: list[Value]) -> list[Value]:
        grown: list[Value] = []
        for odd in range(2):
            place = code.at(code.address(odd), (index, 2))
            places = [code.at(place, (count, block)) for block in range(blocks)]
            held = [code.load(code.singles, code.at(weights, (one, BYTES))) for one in places]
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
    biased = builder.icmp_signed("!=", bias, code.address(0))
    results, targets = [], []
    for block in range(blocks):
        # Without a bias, what is read instead is not used; it must be memory that is there.
        offset = code.load(code.singles, code.at(builder.select(biased, bias, target), block * BYTES))
        offset = builder.select(biased, offset, code.zero(code.singles))
        results += [builder.fadd(total, offset) for total in sums[block * len(rows) : (block + 1) * len(rows)]]
        targets += [code.at(target, (stride, row), block * BYTES) for row in rows]
    with builder.if_else(builder.icmp_signed("!=", add, code.address(0))) as (adds, writes):
        with adds:
            for result, place in zip(results, targets, strict=True):
                code.store(builder.fadd(result, code.load(code.singles, place)), place)
        with writes:
            for result, place in zip(results, targets, strict=True):
                code.store(result, place)
