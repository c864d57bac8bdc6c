"""Loops over the elements of a row, 16 lanes at a time, as LLVM IR: quantize, exp, rotary embedding, float16, copy.

The docstring of each function lists the parameters of the function that it returns; see `llvm_ir.vector_function`.
Knows no layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import VECTOR_BYTES, Value, VectorCode, vector_function

LARGEST_FLOAT16 = 65504.0
"""Largest finite float16; values beyond it are stored as it."""
ZERO_POINT = 128
"""The unsigned byte that stands for zero in quantized activations."""
_MAGNITUDE_MASK, _INFINITY_BITS = 0x7FFFFFFF, 0x7F800000
LOG2_E = 1.44269504088896341
# ln 2 in two parts, and a polynomial for exp on [-ln 2 / 2, ln 2 / 2], as in Cephes' expf (Moshier 1992).
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
EXP_MIN, EXP_MAX = -87.0, 88.0
"""Range of exp's argument; values outside are clamped to it."""


def _bits(value: float) -> int:
    """The bits of a float32, as an int32."""
    return int(np.float32(value).view(np.int32))


def quantize_group(levels: int, smallest: float) -> Any:
    """Quantize a group of values to unsigned bytes with zero point 128 and one scale.

    The scale is the largest magnitude ÷ `levels`; a magnitude below `smallest` counts as `smallest`. The scale is NaN,
    and all bytes are 128, if a value of the group is not finite or `not_finite` is given.

    Parameters: values (float32 [vectors, 16]), vectors, out (uint8 [vectors, 16]), scale (float32 [1]), not_finite
    (whether a value of the row outside the group is not finite, 0 or 1).
    """

    def write(code: VectorCode, values: Value, vectors: Value, out: Value, scale: Value, not_finite: Value) -> None:
        builder = code.builder

        def larger(index: Value, before: list[Value]) -> list[Value]:
            # As integers, the bits of non-negative floats have the order of the floats; NaN is above infinity.
            bits = code.load(code.i32x16, code.address(values, (index, VECTOR_BYTES)))
            magnitude = builder.and_(bits, code.splat_i32(_MAGNITUDE_MASK))
            return [builder.select(builder.icmp_signed(">", magnitude, before[0]), magnitude, before[0])]

        (magnitudes,) = code.loop(vectors, [code.zeros(code.i32x16)], larger)
        largest = code.reduce_max_i32(magnitudes)
        bad = builder.icmp_signed(">=", largest, code.i32(_INFINITY_BITS))
        bad = builder.or_(bad, builder.icmp_signed("!=", not_finite, code.i64(0)))
        least = code.i32(_bits(smallest))
        largest = builder.bitcast(builder.select(builder.icmp_signed(">", largest, least), largest, least), code.f32)
        finite_scale = builder.fdiv(largest, code.f32(levels))
        code.store(builder.select(bad, code.f32(float("nan")), finite_scale), scale)
        factor = code.broadcast(builder.fdiv(code.f32(levels), largest), code.f32x16)
        zeros, bad_lanes = code.zeros(code.f32x16), code.broadcast(bad, code.i1x16)

        def quantize(index: Value, _: list[Value]) -> list[Value]:
            scaled = builder.fmul(code.load(code.f32x16, code.address(values, (index, VECTOR_BYTES))), factor)
            rounded = builder.select(bad_lanes, zeros, code.round_to_even(scaled))
            unsigned = builder.add(builder.fptosi(rounded, code.i32x16), code.splat_i32(ZERO_POINT))
            code.store(builder.trunc(unsigned, code.i8x16), code.address(out, (index, LANES)))
            return []

        code.loop(vectors, [], quantize)

    return vector_function(5, write)


def exponential(code: VectorCode, x: Value) -> Value:
    """e^x of a float32 vector within two units in the last place; the same operations as `int8_decoder.row_ops.exp`."""
    builder = code.builder
    # NaN passes through: every ordered comparison with it is false.
    for comparison, bound in (("<", EXP_MIN), (">", EXP_MAX)):
        limit = code.splat_f32(bound)
        x = builder.select(builder.fcmp_ordered(comparison, x, limit), limit, x)
    exponent = code.round_to_even(builder.fmul(x, code.splat_f32(LOG2_E)))
    rest = x
    for part in (LN2_HIGH, LN2_LOW):
        rest = code.fma(exponent, code.splat_f32(-part), rest)
    value = code.splat_f32(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        value = code.fma(value, rest, code.splat_f32(coefficient))
    value = builder.fadd(code.fma(builder.fmul(value, rest), rest, rest), code.splat_f32(1.0))
    # LLVM does not define the conversion of NaN to an integer.
    exponent = builder.select(builder.fcmp_unordered("uno", exponent, exponent), code.zeros(code.f32x16), exponent)
    power = builder.shl(builder.add(builder.fptosi(exponent, code.i32x16), code.splat_i32(127)), code.splat_i32(23))
    return builder.fmul(value, builder.bitcast(power, code.f32x16))


def rotate_heads() -> Any:
    """Apply the rotary embedding to heads in place; element d is rotated with element d + D / 2, as in GPT-NeoX.

    Parameters: heads (float32 [count, D]), count, cosines (float32 [D]), sines (float32 [D]), vectors (D / 2 / 16).
    """

    def write(code: VectorCode, heads: Value, count: Value, cosines: Value, sines: Value, vectors: Value) -> None:
        builder = code.builder
        half = builder.mul(vectors, code.i64(VECTOR_BYTES))

        def rotate(index: Value, _: list[Value]) -> list[Value]:
            head = code.address(heads, (index, builder.mul(half, code.i64(2))))

            def pair(index: Value, _: list[Value]) -> list[Value]:
                first = builder.mul(index, code.i64(VECTOR_BYTES))
                second = builder.add(first, half)
                low, high = (code.load(code.f32x16, code.address(head, place)) for place in (first, second))
                for place, own, other in ((first, low, builder.fneg(high)), (second, high, low)):
                    cosine, sine = (code.load(code.f32x16, code.address(one, place)) for one in (cosines, sines))
                    code.store(code.fma(own, cosine, builder.fmul(other, sine)), code.address(head, place))
                return []

            return code.loop(vectors, [], pair)

        code.loop(count, [], rotate)

    return vector_function(5, write)


def store_float16(*, strided: bool) -> Any:
    """Store rows as float16, clamped to its finite range; NaN stays NaN.

    Parameters: values (float32 [rows, vectors · 16]), rows, vectors, target (float16), bytes between rows of the
    target, bytes between elements of a row of the target. That last one is 2 and is not read unless `strided`.
    """

    def write(
        code: VectorCode, values: Value, rows: Value, vectors: Value, target: Value, row_stride: Value, stride: Value
    ) -> None:
        builder = code.builder
        most, least = (code.splat_f32(sign * LARGEST_FLOAT16) for sign in (1, -1))

        def store(row: Value, _: list[Value]) -> list[Value]:
            source, to = (
                code.address(values, (builder.mul(row, vectors), VECTOR_BYTES)),
                code.address(target, (row, row_stride)),
            )

            def some(index: Value, _: list[Value]) -> list[Value]:
                value = code.load(code.f32x16, code.address(source, (index, VECTOR_BYTES)))
                # NaN passes through: every ordered comparison with it is false.
                value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
                value = builder.select(builder.fcmp_ordered(">", value, most), most, value)
                halves = builder.fptrunc(value, code.f16x16)
                if not strided:
                    code.store(halves, code.address(to, (index, 2 * LANES)))
                    return []
                first = code.address(to, (builder.mul(index, code.i64(LANES)), stride))
                for lane in range(LANES):
                    code.store(builder.extract_element(halves, code.i32(lane)), code.address(first, (stride, lane)))
                return []

            return code.loop(vectors, [], some)

        code.loop(rows, [], store)

    return vector_function(6, write)


def copy_vectors() -> Any:
    """Copy vectors of 64 bytes.

    Parameters: source, vectors, target.
    """

    def write(code: VectorCode, source: Value, vectors: Value, target: Value) -> None:
        def copy(index: Value, _: list[Value]) -> list[Value]:
            code.store(
                code.load(code.f32x16, code.address(source, (index, VECTOR_BYTES))),
                code.address(target, (index, VECTOR_BYTES)),
            )
            return []

        code.loop(vectors, [], copy)

    return vector_function(3, write)
