"""What happens to one row, sixteen numbers at a time, in LLVM's own language; see `code`. Does not know layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera_kernels.int8_decoder.code import BYTES, Code, Value, function
from tessera_kernels.int8_decoder.machine import LANES

LARGEST_HALF = 65504.0
"""Of float16: what is larger becomes it."""
ZERO = 128
"""What zero is among unsigned bytes."""
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000


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


def rotate_head() -> Any:
    """(head, cosines, sines, vectors of half of it): the second half is the other coordinate, as in GPT-NeoX."""

    def write(code: Code, head: Value, cosines: Value, sines: Value, vectors: Value) -> None:
        builder = code.builder
        half = builder.mul(vectors, code.address(BYTES))

        def pair(index: Value, _: list[Value]) -> list[Value]:
            first = builder.mul(index, code.address(BYTES))
            second = builder.add(first, half)
            low, high = (code.load(code.singles, code.at(head, place)) for place in (first, second))
            for place, own, other in ((first, low, builder.fneg(high)), (second, high, low)):
                cosine, sine = (code.load(code.singles, code.at(one, place)) for one in (cosines, sines))
                code.store(code.fused(own, cosine, builder.fmul(other, sine)), code.at(head, place))
            return []

        code.loop(vectors, [], pair)

    return function(4, write)


def store_halves(*, apart: bool) -> Any:
    """(numbers float32, vectors, target, bytes from one to the next): as float16, side by side unless `apart`."""

    def write(code: Code, numbers: Value, vectors: Value, target: Value, stride: Value) -> None:
        builder = code.builder
        most, least = (code.spread(code.single(sign * LARGEST_HALF), code.singles) for sign in (1, -1))

        def some(index: Value, _: list[Value]) -> list[Value]:
            value = code.load(code.singles, code.at(numbers, (index, BYTES)))
            # A NaN must stay: of comparisons with it none is true.
            value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
            value = builder.select(builder.fcmp_ordered(">", value, most), most, value)
            halves = builder.fptrunc(value, code.halves)
            if not apart:
                code.store(halves, code.at(target, (index, 2 * LANES)))
                return []
            first = code.at(target, (builder.mul(index, code.address(LANES)), stride))
            for lane in range(LANES):
                code.store(builder.extract_element(halves, code.word(lane)), code.at(first, (stride, lane)))
            return []

        code.loop(vectors, [], some)

    return function(4, write)
