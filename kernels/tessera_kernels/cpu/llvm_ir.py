"""Writing loops over vectors of sixteen in LLVM's own language, and making them functions for compiled code.

Addresses are plain integers; nothing is checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera_kernels.cpu.instructions import LANES, intrinsic, ir, numba_types

Value = Any
BYTES = 4 * LANES
"""Of a vector, and of a line of a cache."""


class Code:
    """An LLVM builder with the types that are used here."""

    def __init__(self, builder: Any) -> None:
        llvm = ir()
        self.builder = builder
        self.word, self.address, self.single = llvm.IntType(32), llvm.IntType(64), llvm.FloatType()
        self.words = llvm.VectorType(self.word, LANES)
        self.singles = llvm.VectorType(self.single, LANES)
        self.halves = llvm.VectorType(llvm.HalfType(), LANES)
        self._octet = llvm.IntType(8)
        self.octets = llvm.VectorType(self._octet, LANES)
        self.flags = llvm.VectorType(llvm.IntType(1), LANES)
        self._llvm = llvm

    def zero(self, kind: Any) -> Value:
        """A vector of zeros."""
        return self._llvm.Constant(kind, [0 if kind is not self.singles else 0.0] * LANES)

    def whole(self, number: int) -> Value:
        """A vector of one int32."""
        return self._llvm.Constant(self.words, [number] * LANES)

    def all_of(self, number: float) -> Value:
        """A vector of one float32."""
        # LLVM takes a float32's number for what it is exactly.
        return self._llvm.Constant(self.singles, [float(np.float32(number))] * LANES)

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

    def across(self, operation: str, singles: Value, *first: Value) -> Value:
        """One float32 of a vector's: `fmax`, or `fadd` in whatever order is fastest, which is always the same."""
        kind = self._llvm.FunctionType(self.single, [*[self.single] * len(first), self.singles])
        function = self.builder.module.declare_intrinsic(f"llvm.vector.reduce.{operation}.v16f32", (), kind)
        return self.builder.call(function, [*first, singles], fastmath=("reassoc",))

    def places(self) -> Value:
        """0, 1, … 15."""
        return self._llvm.Constant(self.words, list(range(LANES)))

    def dot_bytes(self, sums: Value, unsigned: Value, signed: Value) -> Value:
        """Each sum grows by the products of its four bytes."""
        kind = self._llvm.FunctionType(self.words, [self.words] * 3)
        function = self.builder.module.declare_intrinsic("llvm.x86.avx512.vpdpbusd.512", (), kind)
        return self.builder.call(function, [sums, unsigned, signed])

    def fetch(self, at: Value) -> None:
        """Ask for a line of memory that will be read; an address behind what there is does no harm."""
        kind, signature = self._octet.as_pointer(), [self._octet.as_pointer(), *[self.word] * 3]
        wanted = self._llvm.FunctionType(self._llvm.VoidType(), signature)
        function = self.builder.module.declare_intrinsic("llvm.prefetch", (kind,), wanted)
        to_read, near, data = (self.word(number) for number in (0, 3, 1))
        self.builder.call(function, [self.builder.inttoptr(at, kind), to_read, near, data])

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
