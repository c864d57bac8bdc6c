"""Loops over vectors of sixteen, in LLVM's own language: what the compiler would not find by itself.

All take addresses. Whatever the number of rows, the numbers of one are added in one order. Does not know layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tessera_kernels.int8_decoder.machine import LANES, intrinsic, ir, numba_types

Value = Any
_BYTES = 4 * LANES
"""Of a vector."""


class _Code:
    """An LLVM builder with the types that are used here."""

    def __init__(self, builder: Any) -> None:
        llvm = ir()
        self.builder = builder
        self.word, self.address, self.single = llvm.IntType(32), llvm.IntType(64), llvm.FloatType()
        self.words = llvm.VectorType(self.word, LANES)
        self.singles = llvm.VectorType(self.single, LANES)
        self.octets = llvm.VectorType(llvm.IntType(8), LANES)
        self._llvm = llvm

    def zero(self, kind: Any) -> Value:
        """A vector of zeros."""
        return self._llvm.Constant(kind, [0 if kind is not self.singles else 0.0] * LANES)

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
        return self.builder.load(self.builder.inttoptr(at, kind.as_pointer()), align=1 if kind is self.octets else 4)

    def store(self, value: Value, at: Value) -> None:
        """Put something to an address."""
        self.builder.store(value, self.builder.inttoptr(at, value.type.as_pointer()), align=4)

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

    def dot_bytes(self, sums: Value, unsigned: Value, signed: Value) -> Value:
        """Each sum grows by the products of its four bytes."""
        kind = self._llvm.FunctionType(self.words, [self.words] * 3)
        function = self.builder.module.declare_intrinsic("llvm.x86.avx512.vpdpbusd.512", (), kind)
        return self.builder.call(function, [sums, unsigned, signed])

    def prefetch(self) -> Callable[[Value], None]:
        """For reading soon, into all levels of the cache."""
        llvm = self._llvm
        octet = llvm.IntType(8).as_pointer()
        kind = llvm.FunctionType(llvm.VoidType(), [octet, self.word, self.word, self.word])
        function = self.builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        read, everywhere, data = self.word(0), self.word(3), self.word(1)

        def fetch(at: Value) -> None:
            self.builder.call(function, [self.builder.inttoptr(at, octet), read, everywhere, data])

        return fetch

    def total(self, vector: Value) -> Value:
        """The sum of a vector's numbers, by halves."""
        kind = self._llvm.FunctionType(self.single, [self.single, self.singles])
        function = self.builder.module.declare_intrinsic("llvm.vector.reduce.fadd.v16f32", (), kind)
        return self.builder.call(function, [self.single(-0.0), vector], fastmath=("reassoc",))

    def totals(self, vectors: Sequence[Value]) -> Value:
        """The sums of four vectors' numbers, as a vector of four: by halves, two and four vectors at once."""

        def pick(left: Value, right: Value, lanes: Sequence[int]) -> Value:
            mask = self._llvm.Constant(self._llvm.VectorType(self.word, len(lanes)), list(lanes))
            return self.builder.shuffle_vector(left, right, mask)

        def halved(left: Value, right: Value, width: int) -> Value:
            begins = range(0, 2 * LANES, 2 * width)
            lower = [begin + lane for begin in begins for lane in range(width)]
            return self.builder.fadd(pick(left, right, lower), pick(left, right, [lane + width for lane in lower]))

        first, second, third, fourth = vectors
        four = halved(halved(first, second, 8), halved(third, fourth, 8), 4)
        two = self.builder.fadd(four, pick(four, four, [lane ^ 2 for lane in range(LANES)]))
        one = self.builder.fadd(two, pick(two, two, [lane ^ 1 for lane in range(LANES)]))
        return pick(one, one, [0, 4, 8, 12])

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


def _function(arguments: int, write: Callable[..., None]) -> Any:
    """A function for compiled code of so many addresses and counts; `write(code, *arguments)` makes its body."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        write(_Code(builder), *given)
        return context.get_dummy_value()

    types = numba_types()

    def typed(_context: Any, *_given: Any) -> Any:
        return types.void(*[types.intp] * arguments), generate

    # Numba counts the parameters.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["context", *(f"argument_{number}" for number in range(arguments))]
    typed.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return intrinsic(typed)


def dot_rows(rows: int, unroll: int) -> Any:
    """(rows, bytes between them, columns, groups of four bytes, target): bytes times bytes, int32 [rows, 16].

    Rows are unsigned, columns signed: by group the four bytes of column 0, then those of column 1, … `unroll` sums run
    side by side, so that no instruction waits for the one before; it must divide the groups.
    """

    def write(code: _Code, first: Value, stride: Value, columns: Value, groups: Value, target: Value) -> None:
        def body(index: Value, sums: list[Value]) -> list[Value]:
            grown: list[Value] = []
            for step in range(unroll):
                group = code.at(code.address(step), (index, unroll))
                weights = code.load(code.words, code.at(columns, (group, _BYTES)))
                for row in range(rows):
                    four = code.load(code.word, code.at(first, (stride, row), (group, 4)))
                    grown.append(code.dot_bytes(sums[len(grown)], code.spread(four, code.words), weights))
            return grown

        rounds = code.builder.sdiv(groups, code.address(unroll))
        sums = code.loop(rounds, [code.zero(code.words)] * (rows * unroll), body)
        for row in range(rows):
            total = sums[row]
            for step in range(1, unroll):
                total = code.builder.add(total, sums[step * rows + row])
            code.store(total, code.at(target, row * _BYTES))

    return _function(5, write)


def finish_rows(rows: int, *, add: bool) -> Any:
    """From integer sums to a linear layer's outputs, sixteen of each row.

    (sums int32 [rows, 16], what they are too large by int32 [16], steps of outputs [16], steps of rows [rows], inputs
    in float [rows, m], bytes between these rows, their weights [m, 16], m, bias [16] or 0, target, bytes between its
    rows); m is even. With `add`, the target grows by the outputs.
    """

    def write(
        code: _Code,
        sums: Value,
        correction: Value,
        steps: Value,
        row_steps: Value,
        exact: Value,
        exact_stride: Value,
        weights: Value,
        count: Value,
        bias: Value,
        target: Value,
        stride: Value,
    ) -> None:
        builder = code.builder
        too_large, step = code.load(code.words, correction), code.load(code.singles, steps)
        values = []
        for row in range(rows):
            whole = builder.sub(code.load(code.words, code.at(sums, row * _BYTES)), too_large)
            scaled = builder.fmul(builder.sitofp(whole, code.singles), step)
            row_step = code.load(code.single, code.at(row_steps, 4 * row))
            values.append(builder.fmul(scaled, code.spread(row_step, code.singles)))

        def body(index: Value, before: list[Value]) -> list[Value]:
            grown: list[Value] = []
            for odd in range(2):
                place = code.at(code.address(odd), (index, 2))
                weight = code.load(code.singles, code.at(weights, (place, _BYTES)))
                for row in range(rows):
                    one = code.load(code.single, code.at(exact, (exact_stride, row), (place, 4)))
                    grown.append(code.fused(code.spread(one, code.singles), weight, before[len(grown)]))
            return grown

        pairs = builder.sdiv(count, code.address(2))
        sides = code.loop(pairs, [*values, *[code.zero(code.singles)] * rows], body)
        with builder.if_else(builder.icmp_signed("!=", bias, code.address(0))) as (there, missing):
            with there:
                loaded = code.load(code.singles, bias)
                from_there = builder.block
            with missing:
                from_missing = builder.block
        offset = builder.phi(code.singles)
        offset.add_incoming(loaded, from_there)
        offset.add_incoming(code.zero(code.singles), from_missing)
        for row in range(rows):
            place = code.at(target, (stride, row))
            value = builder.fadd(builder.fadd(sides[row], sides[rows + row]), offset)
            if add:
                value = builder.fadd(value, code.load(code.singles, place))
            code.store(value, place)

    return _function(11, write)


def _stored(code: _Code, at: Value, place: Value, *, quantized: bool) -> Value:
    """Sixteen of a cache's numbers from the place-th vector on, as floats."""
    if not quantized:
        return code.load(code.singles, code.at(at, (place, _BYTES)))
    octets = code.load(code.octets, code.at(at, (place, LANES)))
    return code.builder.sitofp(code.builder.sext(octets, code.words), code.singles)


def score_rows(width: int, *, quantized: bool) -> Any:
    """(query [D], keys, bytes between them, how many, D / 16 / width, scores [count]): products, four keys at once."""

    def write(code: _Code, query: Value, keys: Value, stride: Value, count: Value, parts: Value, scores: Value) -> None:
        def products(first: Value, some: int) -> list[Value]:
            starts = [code.at(keys, (code.at(first, one), stride)) for one in range(some)]

            def grow(part: Value, totals: list[Value]) -> list[Value]:
                for vector in range(width):
                    place = code.at(code.address(vector), (part, width))
                    one = code.load(code.singles, code.at(query, (place, _BYTES)))
                    totals = [
                        code.fused(one, _stored(code, start, place, quantized=quantized), total)
                        for start, total in zip(starts, totals, strict=True)
                    ]
                return totals

            return code.loop(parts, [code.zero(code.singles)] * some, grow)

        def by_four(index: Value, _: list[Value]) -> list[Value]:
            first = code.builder.mul(index, code.address(4))
            code.store(code.totals(products(first, 4)), code.at(scores, (first, 4)))
            return []

        def singly(index: Value, _: list[Value]) -> list[Value]:
            place = code.at(index, (fours, 4))
            [product] = products(place, 1)
            code.store(code.total(product), code.at(scores, (place, 4)))
            return []

        fours = code.builder.sdiv(count, code.address(4))
        code.loop(fours, [], by_four)
        code.loop(code.builder.srem(count, code.address(4)), [], singly)

    return _function(6, write)


def mix_rows(width: int, *, quantized: bool) -> Any:
    """(shares [count], values, bytes between them, how many, D / 16 / width, target [D]): target += shares · values.

    `width` vectors of the target stay in registers at once.
    """

    def write(
        code: _Code, shares: Value, values: Value, stride: Value, count: Value, parts: Value, target: Value
    ) -> None:
        def body(part: Value, _: list[Value]) -> list[Value]:
            first = code.builder.mul(part, code.address(width))
            places = [code.at(first, one) for one in range(width)]
            begin = [code.load(code.singles, code.at(target, (place, _BYTES))) for place in places]

            def grow(index: Value, sums: list[Value]) -> list[Value]:
                share = code.spread(code.load(code.single, code.at(shares, (index, 4))), code.singles)
                value = code.at(values, (index, stride))
                return [
                    code.fused(share, _stored(code, value, place, quantized=quantized), total)
                    for place, total in zip(places, sums, strict=True)
                ]

            for place, total in zip(places, code.loop(count, begin, grow), strict=True):
                code.store(total, code.at(target, (place, _BYTES)))
            return []

        code.loop(parts, [], body)

    return _function(6, write)


def fetch_rows() -> Any:
    """(rows, bytes between them, how many, cache lines of each): have them in the cache soon.

    Pages lie anywhere and rows apart, which the processor does not foresee.
    """

    def write(code: _Code, rows: Value, stride: Value, count: Value, lines: Value) -> None:
        function = code.prefetch()

        def row(index: Value, _: list[Value]) -> list[Value]:
            start = code.at(rows, (index, stride))

            def line(place: Value, __: list[Value]) -> list[Value]:
                function(code.at(start, (place, _BYTES)))
                return []

            code.loop(lines, [], line)
            return []

        code.loop(count, [], row)

    return _function(4, write)
