"""What happens to one row, sixteen numbers at a time, in LLVM's own language; see `code`. Does not know layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import BYTES, Code, Value, function

LARGEST_HALF = 65504.0
"""Of float16: what is larger becomes it."""
ZERO = 128
"""What zero is among unsigned bytes."""
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
LOG2_E = 1.44269504088896341
# ln 2 in two parts, and a polynomial for exp on [-ln 2 / 2, ln 2 / 2], as in Cephes' expf (Moshier 1992).
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LEAST, MOST = -87.0, 88.0
"""Of what exp is computed of; what lies outside counts as these."""


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


def round_group(levels: int, smallest: float) -> Any:
    """(values float32, vectors, out, step, whether a value elsewhere is none): bytes around 128 and their step.

    The largest magnitude is `levels` steps; one below `smallest` counts as that. The step is NaN if a value is none.
    """

    def write(code: Code, values: Value, vectors: Value, out: Value, step: Value, spoiled: Value) -> None:
        builder = code.builder

        def larger(index: Value, before: list[Value]) -> list[Value]:
            # The bits of numbers that are not negative are in the numbers' order, and those of NaN behind all.
            bits = code.load(code.words, code.at(values, (index, BYTES)))
            size = builder.and_(bits, code.whole(_MAGNITUDE))
            return [builder.select(builder.icmp_signed(">", size, before[0]), size, before[0])]

        (sizes,) = code.loop(vectors, [code.zero(code.words)], larger)
        largest = code.largest_of(sizes)
        none = builder.icmp_signed(">=", largest, code.word(_INFINITY))
        none = builder.or_(none, builder.icmp_signed("!=", spoiled, code.address(0)))
        least = code.word(_bits(smallest))
        largest = builder.bitcast(builder.select(builder.icmp_signed(">", largest, least), largest, least), code.single)
        of_one = builder.fdiv(largest, code.single(levels))
        code.store(builder.select(none, code.single(float("nan")), of_one), step)
        factor = code.spread(builder.fdiv(code.single(levels), largest), code.singles)
        nothing, nones = code.zero(code.singles), code.spread(none, code.flags)

        def rounded(index: Value, _: list[Value]) -> list[Value]:
            scaled = builder.fmul(code.load(code.singles, code.at(values, (index, BYTES))), factor)
            near = builder.select(nones, nothing, code.nearest(scaled))
            unsigned = builder.add(builder.fptosi(near, code.words), code.whole(ZERO))
            code.store(builder.trunc(unsigned, code.octets), code.at(out, (index, LANES)))
            return []

        code.loop(vectors, [], rounded)

    return function(5, write)


def exponential(code: Code, x: Value) -> Value:
    """e^x of a vector, as `rows.exp`."""
    builder = code.builder
    # A NaN must stay: of comparisons with it none is true.
    for comparison, bound in (("<", LEAST), (">", MOST)):
        limit = code.all_of(bound)
        x = builder.select(builder.fcmp_ordered(comparison, x, limit), limit, x)
    whole = code.nearest(builder.fmul(x, code.all_of(LOG2_E)))
    rest = x
    for part in (LN2_HIGH, LN2_LOW):
        rest = code.fused(whole, code.all_of(-part), rest)
    value = code.all_of(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        value = code.fused(value, rest, code.all_of(coefficient))
    value = builder.fadd(code.fused(builder.fmul(value, rest), rest, rest), code.all_of(1.0))
    # What a NaN is as a whole number is nobody's promise.
    whole = builder.select(builder.fcmp_unordered("uno", whole, whole), code.zero(code.singles), whole)
    power = builder.shl(builder.add(builder.fptosi(whole, code.words), code.whole(127)), code.whole(23))
    return builder.fmul(value, builder.bitcast(power, code.singles))


def rotate_heads() -> Any:
    """(heads, how many, cosines, sines, vectors of half a head): a head's second half is the other coordinate, as in
    GPT-NeoX.
    """

    def write(code: Code, heads: Value, count: Value, cosines: Value, sines: Value, vectors: Value) -> None:
        builder = code.builder
        half = builder.mul(vectors, code.address(BYTES))

        def rotate(number: Value, _: list[Value]) -> list[Value]:
            head = code.at(heads, (number, builder.mul(half, code.address(2))))

            def pair(index: Value, _: list[Value]) -> list[Value]:
                first = builder.mul(index, code.address(BYTES))
                second = builder.add(first, half)
                low, high = (code.load(code.singles, code.at(head, place)) for place in (first, second))
                for place, own, other in ((first, low, builder.fneg(high)), (second, high, low)):
                    cosine, sine = (code.load(code.singles, code.at(one, place)) for one in (cosines, sines))
                    code.store(code.fused(own, cosine, builder.fmul(other, sine)), code.at(head, place))
                return []

            return code.loop(vectors, [], pair)

        code.loop(count, [], rotate)

    return function(5, write)


def store_halves(*, apart: bool) -> Any:
    """(numbers float32, rows, vectors of each, target, bytes between its rows, bytes from one number to the next): as
    float16, the numbers of a row side by side unless `apart`.
    """

    def write(
        code: Code, numbers: Value, rows: Value, vectors: Value, target: Value, rows_apart: Value, stride: Value
    ) -> None:
        builder = code.builder
        most, least = (code.all_of(sign * LARGEST_HALF) for sign in (1, -1))

        def store(row: Value, _: list[Value]) -> list[Value]:
            source, to = code.at(numbers, (builder.mul(row, vectors), BYTES)), code.at(target, (row, rows_apart))

            def some(index: Value, _: list[Value]) -> list[Value]:
                value = code.load(code.singles, code.at(source, (index, BYTES)))
                # A NaN must stay: of comparisons with it none is true.
                value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
                value = builder.select(builder.fcmp_ordered(">", value, most), most, value)
                halves = builder.fptrunc(value, code.halves)
                if not apart:
                    code.store(halves, code.at(to, (index, 2 * LANES)))
                    return []
                first = code.at(to, (builder.mul(index, code.address(LANES)), stride))
                for lane in range(LANES):
                    code.store(builder.extract_element(halves, code.word(lane)), code.at(first, (stride, lane)))
                return []

            return code.loop(vectors, [], some)

        code.loop(rows, [], store)

    return function(6, write)


def copy_vectors() -> Any:
    """(from, vectors, to)."""

    def write(code: Code, source: Value, vectors: Value, to: Value) -> None:
        def one(index: Value, _: list[Value]) -> list[Value]:
            code.store(code.load(code.singles, code.at(source, (index, BYTES))), code.at(to, (index, BYTES)))
            return []

        code.loop(vectors, [], one)

    return function(3, write)
