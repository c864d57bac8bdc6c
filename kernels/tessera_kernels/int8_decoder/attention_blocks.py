"""Loops of attention over a block of sixteen slots, in LLVM's own language; see `code`.

Keys of a block lie by number: all slots' first, then all slots' second …, so that one register has a number of sixteen
keys and no sum goes across a register. Values lie slot by slot. Whatever the number of queries, what is computed of one
is the same bits. Does not know pages.
"""

from __future__ import annotations

from typing import Any

from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import BYTES, Code, Value, function
from tessera_kernels.cpu.vector_loops import exponential

SINGLE, HALF, OCTET = 4, 2, 1
"""Bytes of a float32, of a float16, and of a quantized number."""
AHEAD = 128 * BYTES
"""How far in front of the keys and values that are computed others are asked for, each line once. Heads go through a
page of values one after the other, which a processor does not foresee; and memory that lies behind a sequence's last
page is asked for in vain."""


def _stored(code: Code, at: Value, place: Value, item: int) -> Value:
    """Sixteen of a cache's numbers of `item` bytes from the place-th vector on, as floats."""
    where = code.at(at, (place, LANES * item))
    if item == SINGLE:
        return code.load(code.singles, where)
    if item == HALF:
        return code.builder.fpext(code.load(code.halves, where), code.singles)
    return code.builder.sitofp(code.builder.sext(code.load(code.octets, where), code.words), code.singles)


def score_block(queries: int, item: int) -> Any:
    """(queries [D], bytes between them, keys [D, 16], D / 2, steps [16], scores [16], bytes between these): products.

    Numbers of even places are added up by themselves, and those of odd ones; steps are of quantized keys.
    """

    def write(
        code: Code,
        first: Value,
        stride: Value,
        keys: Value,
        pairs: Value,
        steps: Value,
        scores: Value,
        scores_stride: Value,
    ) -> None:
        def grow(pair: Value, sums: list[Value]) -> list[Value]:
            grown: list[Value] = []
            for odd in range(2):
                place = code.at(code.address(odd), (pair, 2))
                key = _stored(code, keys, place, item)
                if item == SINGLE or odd == 0:
                    code.fetch(code.at(keys, (place, LANES * item), AHEAD))
                for query in range(queries):
                    one = code.load(code.single, code.at(first, (stride, query), (place, 4)))
                    grown.append(code.fused(code.spread(one, code.singles), key, sums[len(grown)]))
            return grown

        sums = code.loop(pairs, [code.zero(code.singles)] * (2 * queries), grow)
        step = code.load(code.singles, steps) if item == OCTET else None
        for query in range(queries):
            product = code.builder.fadd(sums[query], sums[queries + query])
            if step is not None:
                product = code.builder.fmul(product, step)
            code.store(product, code.at(scores, (scores_stride, query)))

    return function(7, write)


def share_out() -> Any:
    """(scores, bytes between queries', how many, place of the first score that is seen, place behind the last, factor,
    totals): exp(factor · (scores - the largest)) in place, and their sums.

    Scores of a query begin with a whole vector; what lies in one with them and is not seen becomes zero. A score that
    is not a number makes the sum none.
    """

    def write(
        code: Code, scores: Value, stride: Value, queries: Value, first: Value, end: Value, factor: Value, totals: Value
    ) -> None:
        builder = code.builder
        vectors = builder.sdiv(code.at(end, LANES - 1), code.address(LANES))
        begin, behind = (code.spread(builder.trunc(one, code.word), code.words) for one in (first, end))
        scaling = code.spread(code.load(code.single, factor), code.singles)
        smallest, nothing = code.all_of(float("-inf")), code.zero(code.singles)

        def seen(index: Value) -> Value:
            start = builder.trunc(builder.mul(index, code.address(LANES)), code.word)
            place = builder.add(code.spread(start, code.words), code.places())
            return builder.and_(builder.icmp_signed(">=", place, begin), builder.icmp_signed("<", place, behind))

        def of_query(query: Value, _: list[Value]) -> list[Value]:
            row = code.at(scores, (query, stride))

            def larger(index: Value, before: list[Value]) -> list[Value]:
                score = code.load(code.singles, code.at(row, (index, BYTES)))
                more = builder.and_(seen(index), builder.fcmp_ordered(">", score, before[0]))
                return [builder.select(more, score, before[0])]

            (most,) = code.loop(vectors, [smallest], larger)
            largest = code.spread(code.across("fmax", most), code.singles)

            def share(index: Value, sums: list[Value]) -> list[Value]:
                place = code.at(row, (index, BYTES))
                below = builder.fsub(code.load(code.singles, place), largest)
                weight = builder.select(seen(index), exponential(code, builder.fmul(below, scaling)), nothing)
                code.store(weight, place)
                return [builder.fadd(sums[0], weight)]

            (sums,) = code.loop(vectors, [nothing], share)
            code.store(code.across("fadd", sums, code.single(0.0)), code.at(totals, (query, 4)))
            return []

        code.loop(queries, [], of_query)

    return function(7, write)


def divide_rows() -> Any:
    """(rows float32, bytes between them, how many, vectors of each, totals): each divided by its total."""

    def write(code: Code, rows: Value, stride: Value, count: Value, vectors: Value, totals: Value) -> None:
        def of_row(row: Value, _: list[Value]) -> list[Value]:
            total = code.load(code.single, code.at(totals, (row, 4)))
            factor = code.spread(code.builder.fdiv(code.single(1.0), total), code.singles)

            def one(index: Value, _: list[Value]) -> list[Value]:
                place = code.at(rows, (row, stride), (index, BYTES))
                code.store(code.builder.fmul(code.load(code.singles, place), factor), place)
                return []

            return code.loop(vectors, [], one)

        code.loop(count, [], of_row)

    return function(5, write)


def weigh_block() -> Any:
    """(shares [16], bytes between queries', how many, steps [16]): shares of quantized values times these' steps."""

    def write(code: Code, shares: Value, stride: Value, count: Value, steps: Value) -> None:
        step = code.load(code.singles, steps)

        def one(index: Value, _: list[Value]) -> list[Value]:
            place = code.at(shares, (index, stride))
            code.store(code.builder.fmul(code.load(code.singles, place), step), place)
            return []

        code.loop(count, [], one)

    return function(4, write)


def mix_rows(queries: int, width: int, item: int) -> Any:
    """(shares [count], bytes between queries', values, bytes between slots, count, D / 16 / width, target [D], bytes
    between queries'): target += shares · values.

    `width` vectors of each query's target stay in registers at once.
    """

    def write(
        code: Code,
        shares: Value,
        shares_stride: Value,
        values: Value,
        stride: Value,
        count: Value,
        parts: Value,
        target: Value,
        target_stride: Value,
    ) -> None:
        def body(part: Value, _: list[Value]) -> list[Value]:
            begin = code.builder.mul(part, code.address(width))
            places = [code.at(begin, one) for one in range(width)]
            targets = [
                code.at(target, (target_stride, query), (place, BYTES)) for query in range(queries) for place in places
            ]

            def grow(index: Value, sums: list[Value]) -> list[Value]:
                slot = code.at(values, (index, stride))
                held = [_stored(code, slot, place, item) for place in places]
                for place in places[:: SINGLE // item]:
                    code.fetch(code.at(slot, (place, LANES * item), AHEAD))
                grown: list[Value] = []
                for query in range(queries):
                    share = code.load(code.single, code.at(shares, (shares_stride, query), (index, 4)))
                    spread = code.spread(share, code.singles)
                    grown += [code.fused(spread, value, sums[len(grown) + at]) for at, value in enumerate(held)]
                return grown

            before = [code.load(code.singles, place) for place in targets]
            for place, total in zip(targets, code.loop(count, before, grow), strict=True):
                code.store(total, place)
            return []

        code.loop(parts, [], body)

    return function(8, write)
