"""Loops over vectors of 16 lanes, written as LLVM IR, and made functions that Numba-compiled code can call.

Numba's vectorizer does not find these loops by itself. Addresses are plain integers; nothing is bounds-checked.
Knows no op.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera_kernels.cpu.instructions import LANES, intrinsic, ir, numba_types

Value = Any
VECTOR_BYTES = 4 * LANES
"""Bytes of a vector of 16 float32 or int32 elements, which is also the size of a cache line."""
F32_BYTES, F16_BYTES, I8_BYTES = 4, 2, 1
"""Bytes of an element: float32 (also int32), float16, int8."""


class VectorCode:
    """An LLVM IR builder for vectors of 16 lanes.

    Types are named as in IR: `f32` is a scalar, `f32x16` a vector. `i64` is the type of addresses and counts.
    """

    def __init__(self, builder: Any) -> None:
        llvm = ir()
        self.builder = builder
        self.i32, self.i64, self.f32 = llvm.IntType(32), llvm.IntType(64), llvm.FloatType()
        self.i32x16 = llvm.VectorType(self.i32, LANES)
        self.f32x16 = llvm.VectorType(self.f32, LANES)
        self.f16x16 = llvm.VectorType(llvm.HalfType(), LANES)
        self.i8 = llvm.IntType(8)
        self.i8x16 = llvm.VectorType(self.i8, LANES)
        self.i1x16 = llvm.VectorType(llvm.IntType(1), LANES)
        self._llvm = llvm

    def zeros(self, kind: Any) -> Value:
        """A constant vector of zeros of a vector type."""
        return self._llvm.Constant(kind, [0 if kind is not self.f32x16 else 0.0] * LANES)

    def splat_i32(self, value: int) -> Value:
        """A constant int32 in all 16 lanes."""
        return self._llvm.Constant(self.i32x16, [value] * LANES)

    def splat_f32(self, value: float) -> Value:
        """A constant in all 16 lanes, rounded to float32."""
        # LLVM refuses a float constant that float32 cannot hold exactly.
        return self._llvm.Constant(self.f32x16, [float(np.float32(value))] * LANES)

    def address(self, base: Value, *offsets: Value | tuple[Value, Value | int]) -> Value:
        """The base plus all offsets, in bytes; a tuple (index, stride) is the offset index · stride."""
        for offset in offsets:
            if isinstance(offset, tuple):
                left, right = (self.i64(one) if isinstance(one, int) else one for one in offset)
                base = self.builder.add(base, self.builder.mul(left, right))
            else:
                base = self.builder.add(base, self.i64(offset) if isinstance(offset, int) else offset)
        return base

    def load(self, kind: Any, at: Value) -> Value:
        """Load a value of a type from an address, which need be aligned to one element only."""
        align = {id(self.i8x16): 1, id(self.f16x16): 2}.get(id(kind), 4)
        return self.builder.load(self.builder.inttoptr(at, kind.as_pointer()), align=align)

    def store(self, value: Value, at: Value) -> None:
        """Store a value at an address, which need be aligned to one element only."""
        align = 4 if value.type in {self.i32x16, self.f32x16, self.i32, self.f32} else 1
        self.builder.store(value, self.builder.inttoptr(at, value.type.as_pointer()), align=align)

    def broadcast(self, value: Value, kind: Any) -> Value:
        """Broadcast a scalar to all 16 lanes of a vector type."""
        undefined = self._llvm.Constant(kind, self._llvm.Undefined)
        first = self.builder.insert_element(undefined, value, self.i32(0))
        return self.builder.shuffle_vector(first, undefined, self.zeros(self.i32x16))

    def fma(self, left: Value, right: Value, added: Value) -> Value:
        """Fused multiply-add of float32 vectors: left · right + added, rounded once."""
        kind = self._llvm.FunctionType(self.f32x16, [self.f32x16] * 3)
        function = self.builder.module.declare_intrinsic("llvm.fma.v16f32", (), kind)
        return self.builder.call(function, [left, right, added])

    def round_to_even(self, value: Value) -> Value:
        """Round each float32 lane to the nearest integer, ties to even."""
        kind = self._llvm.FunctionType(self.f32x16, [self.f32x16])
        return self.builder.call(self.builder.module.declare_intrinsic("llvm.rint.v16f32", (), kind), [value])

    def reduce_max_i32(self, vector: Value) -> Value:
        """Largest of the 16 signed int32 lanes."""
        kind = self._llvm.FunctionType(self.i32, [self.i32x16])
        function = self.builder.module.declare_intrinsic("llvm.vector.reduce.smax.v16i32", (), kind)
        return self.builder.call(function, [vector])

    def reduce_f32(self, operation: str, vector: Value, *first: Value) -> Value:
        """Reduce the 16 float32 lanes by `fmax`, or by `fadd` from the value `first` on.

        The compiler chooses the order of the sum; it is the same at every call.
        """
        kind = self._llvm.FunctionType(self.f32, [*[self.f32] * len(first), self.f32x16])
        function = self.builder.module.declare_intrinsic(f"llvm.vector.reduce.{operation}.v16f32", (), kind)
        return self.builder.call(function, [*first, vector], fastmath=("reassoc",))

    def lane_indices(self) -> Value:
        """The int32 vector 0, 1, … 15."""
        return self._llvm.Constant(self.i32x16, list(range(LANES)))

    def vpdpbusd(self, accumulator: Value, unsigned: Value, signed: Value) -> Value:
        """AVX-512 VNNI: add to each int32 lane the dot product of its four bytes, without saturation.

        Args:
            accumulator: int32 [16].
            unsigned: four uint8 of each lane, as int32 [16].
            signed: four int8 of each lane, as int32 [16].
        """
        kind = self._llvm.FunctionType(self.i32x16, [self.i32x16] * 3)
        function = self.builder.module.declare_intrinsic("llvm.x86.avx512.vpdpbusd.512", (), kind)
        return self.builder.call(function, [accumulator, unsigned, signed])

    def prefetch(self, at: Value) -> None:
        """Prefetch the cache line at an address into all cache levels; an unmapped address does no harm."""
        kind, signature = self.i8.as_pointer(), [self.i8.as_pointer(), *[self.i32] * 3]
        wanted = self._llvm.FunctionType(self._llvm.VoidType(), signature)
        function = self.builder.module.declare_intrinsic("llvm.prefetch", (kind,), wanted)
        for_reading, locality, data_cache = (self.i32(flag) for flag in (0, 3, 1))
        self.builder.call(function, [self.builder.inttoptr(at, kind), for_reading, locality, data_cache])

    def loop(
        self, count: Value, initial: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """A loop with loop-carried values; returns the values after the last iteration.

        Args:
            count: iterations, an i64; may be zero, then the initial values are returned.
            initial: values before the first iteration.
            body: emits one iteration: `body(index, values)` gives the next values.
        """
        builder = self.builder
        entry = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", count, self.i64(0)), loop, done)
        builder.position_at_end(loop)
        index = builder.phi(self.i64)
        values = [builder.phi(one.type) for one in initial]
        updated = body(index, list(values))
        following, end = builder.add(index, self.i64(1)), builder.block
        index.add_incoming(self.i64(0), entry)
        index.add_incoming(following, end)
        for phi, first, then in zip(values, initial, updated, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(then, end)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
        builder.position_at_end(done)
        results = []
        for first, then in zip(initial, updated, strict=True):
            phi = builder.phi(first.type)
            phi.add_incoming(first, entry)
            phi.add_incoming(then, end)
            results.append(phi)
        return results


def vector_function(arguments: int, write: Callable[..., None]) -> Any:
    """A function without a result that Numba-compiled code can call; its IR is emitted at the call site.

    Args:
        arguments: how many parameters the function has; each is an int64: an address, a stride in bytes or a count.
        write: emits the body: `write(code, *parameters)`.
    """

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        write(VectorCode(builder), *given)
        return context.get_dummy_value()

    types = numba_types()

    def typed(_context: Any, *_given: Any) -> Any:
        return types.void(*[types.intp] * arguments), generate

    # Numba reads the number of parameters from the signature.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["context", *(f"argument_{index}" for index in range(arguments))]
    typed.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return intrinsic(typed)
