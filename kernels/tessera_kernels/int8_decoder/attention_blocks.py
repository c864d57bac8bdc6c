"""Loops of attention over a block of 16 slots, as LLVM IR: scores, softmax, weighted sums of values.

Keys of a block lie with the slot as the last dimension, [D, 16]: one register holds element d of sixteen keys, so a
score needs no sum across the lanes of a register. Values lie slot by slot, [16, D]. A query's result has the same bits
whatever the number of queries.

Each function returns a function for compiled code; its docstring lists the parameters, which are addresses, strides in
bytes and counts. `item` is the bytes of a stored element: 4 for float32, 2 for float16, 1 for int8 with a float32
scale for each slot. Knows no pages.
"""

from __future__ import annotations

from typing import Any

from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.cpu.llvm_ir import F16_BYTES, F32_BYTES, I8_BYTES, VECTOR_BYTES, Value, VectorCode, vector_function
from tessera_kernels.cpu.vector_loops import exponential

KV_PREFETCH_BYTES = 128 * VECTOR_BYTES
"""Prefetch distance in keys and values, in bytes: 128 cache lines ahead, each line once. Found by timing decode steps
of 16 sequences; half the distance was slower (`loadtests/IDEAS.md`). The hardware prefetcher does not help with values:
the heads walk through a page of values one after another. Lines behind a sequence's last page are fetched in vain."""


def _load_stored(code: VectorCode, base: Value, vector: Value, item: int) -> Value:
    """Vector number `vector` of stored elements of `item` bytes, converted to float32 (int8 without its scale)."""
    where = code.address(base, (vector, LANES * item))
    if item == F32_BYTES:
        return code.load(code.f32x16, where)
    if item == F16_BYTES:
        return code.builder.fpext(code.load(code.f16x16, where), code.f32x16)
    return code.builder.sitofp(code.builder.sext(code.load(code.i8x16, where), code.i32x16), code.f32x16)


def score_block(queries: int, item: int) -> Any:
    """Scores q · k of some queries and the 16 keys of a block, without the softmax's scaling.

    Even and odd elements are summed in accumulators of their own, so that no FMA waits for the one before.

    Parameters: queries (float32 [queries, D]), bytes between queries, keys ([D, 16]), D / 2, key scales (float32 [16],
    read for int8 only), scores (float32 [queries, 16], written), bytes between queries' scores.
    """

    def write(
        code: VectorCode,
        query: Value,
        query_stride: Value,
        keys: Value,
        pairs: Value,
        key_scales: Value,
        scores: Value,
        scores_stride: Value,
    ) -> None:
        def body(pair: Value, sums: list[Value]) -> list[Value]:
            updated: list[Value] = []
            for odd in range(2):
                element = code.address(code.i64(odd), (pair, 2))
                key = _load_stored(code, keys, element, item)
                # Sixteen float32 fill a cache line, smaller elements half of one or less: no line is prefetched twice.
                if item == F32_BYTES or odd == 0:
                    code.prefetch(code.address(keys, (element, LANES * item), KV_PREFETCH_BYTES))
                for q in range(queries):
                    one = code.load(code.f32, code.address(query, (query_stride, q), (element, F32_BYTES)))
                    updated.append(code.fma(code.broadcast(one, code.f32x16), key, sums[len(updated)]))
            return updated

        sums = code.loop(pairs, [code.zeros(code.f32x16)] * (2 * queries), body)
        scale = code.load(code.f32x16, key_scales) if item == I8_BYTES else None
        for q in range(queries):
            score = code.builder.fadd(sums[q], sums[queries + q])
            if scale is not None:
                score = code.builder.fmul(score, scale)
            code.store(score, code.address(scores, (scores_stride, q)))

    return vector_function(7, write)


def exponentiate_scores() -> Any:
    """Softmax without its division, in place: weight = exp(scaling · (score - largest score)), and the sum of weights.

    A query's scores begin at a multiple of 16 slots; slots of that first and of the last vector that the query does not
    see get weight zero. A NaN among the scores makes the sum NaN.

    Parameters: scores (float32, replaced by weights), bytes between queries, queries, index of the first slot that is
    seen, index behind the last one, scaling (float32 [1]), sums (float32 [queries], written).
    """

    def write(
        code: VectorCode,
        scores: Value,
        stride: Value,
        queries: Value,
        first: Value,
        end: Value,
        scaling: Value,
        sums: Value,
    ) -> None:
        builder = code.builder
        vectors = builder.sdiv(code.address(end, LANES - 1), code.i64(LANES))
        begin, behind = (code.broadcast(builder.trunc(one, code.i32), code.i32x16) for one in (first, end))
        scaling_16 = code.broadcast(code.load(code.f32, scaling), code.f32x16)
        smallest, zeros = code.splat_f32(float("-inf")), code.zeros(code.f32x16)

        def seen(index: Value) -> Value:
            start = builder.trunc(builder.mul(index, code.i64(LANES)), code.i32)
            slot = builder.add(code.broadcast(start, code.i32x16), code.lane_indices())
            return builder.and_(builder.icmp_signed(">=", slot, begin), builder.icmp_signed("<", slot, behind))

        def of_query(query: Value, _: list[Value]) -> list[Value]:
            row = code.address(scores, (query, stride))

            def larger(index: Value, before: list[Value]) -> list[Value]:
                score = code.load(code.f32x16, code.address(row, (index, VECTOR_BYTES)))
                more = builder.and_(seen(index), builder.fcmp_ordered(">", score, before[0]))
                return [builder.select(more, score, before[0])]

            (most,) = code.loop(vectors, [smallest], larger)
            largest = code.broadcast(code.reduce_f32("fmax", most), code.f32x16)

            def exponentiate(index: Value, before: list[Value]) -> list[Value]:
                place = code.address(row, (index, VECTOR_BYTES))
                below = builder.fsub(code.load(code.f32x16, place), largest)
                weight = builder.select(seen(index), exponential(code, builder.fmul(below, scaling_16)), zeros)
                code.store(weight, place)
                return [builder.fadd(before[0], weight)]

            (total,) = code.loop(vectors, [zeros], exponentiate)
            code.store(code.reduce_f32("fadd", total, code.f32(0.0)), code.address(sums, (query, F32_BYTES)))
            return []

        code.loop(queries, [], of_query)

    return vector_function(7, write)


def divide_rows() -> Any:
    """Divide each row by its sum of softmax weights, in place.

    Parameters: rows (float32 [count, vectors · 16]), bytes between rows, count, vectors, sums (float32 [count]).
    """

    def write(code: VectorCode, rows: Value, stride: Value, count: Value, vectors: Value, sums: Value) -> None:
        def of_row(row: Value, _: list[Value]) -> list[Value]:
            total = code.load(code.f32, code.address(sums, (row, F32_BYTES)))
            factor = code.broadcast(code.builder.fdiv(code.f32(1.0), total), code.f32x16)

            def one(index: Value, _: list[Value]) -> list[Value]:
                place = code.address(rows, (row, stride), (index, VECTOR_BYTES))
                code.store(code.builder.fmul(code.load(code.f32x16, place), factor), place)
                return []

            return code.loop(vectors, [], one)

        code.loop(count, [], of_row)

    return vector_function(5, write)


def scale_weights() -> Any:
    """Multiply the softmax weights of a block by the scales of its int8 values, in place.

    Parameters: weights (float32 [queries, 16]), bytes between queries, queries, value scales (float32 [16]).
    """

    def write(code: VectorCode, weights: Value, stride: Value, queries: Value, value_scales: Value) -> None:
        scales = code.load(code.f32x16, value_scales)

        def one(index: Value, _: list[Value]) -> list[Value]:
            place = code.address(weights, (index, stride))
            code.store(code.builder.fmul(code.load(code.f32x16, place), scales), place)
            return []

        code.loop(queries, [], one)

    return vector_function(4, write)


def add_weighted_values(queries: int, width: int, item: int) -> Any:
    """Add the weighted values of some slots to the outputs: output += weights · values.

    Parameters: weights (float32 [queries, slots]), bytes between queries' weights, values ([slots, D]), bytes between
    slots, slots, D / 16 / width, outputs (float32 [queries, D]), bytes between queries' outputs.

    Args:
        queries: queries that are computed at once.
        width: vectors of each query's output that stay in registers over all slots.
        item: bytes of a stored element.
    """

    def write(
        code: VectorCode,
        weights: Value,
        weights_stride: Value,
        values: Value,
        slot_stride: Value,
        slots: Value,
        parts: Value,
        output: Value,
        output_stride: Value,
    ) -> None:
        def part(index: Value, _: list[Value]) -> list[Value]:
            begin = code.builder.mul(index, code.i64(width))
            vectors = [code.address(begin, one) for one in range(width)]
            targets = [
                code.address(output, (output_stride, query), (vector, VECTOR_BYTES))
                for query in range(queries)
                for vector in vectors
            ]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                slot = code.address(values, (index, slot_stride))
                loaded = [_load_stored(code, slot, vector, item) for vector in vectors]
                for vector in vectors[:: F32_BYTES // item]:
                    code.prefetch(code.address(slot, (vector, LANES * item), KV_PREFETCH_BYTES))
                updated: list[Value] = []
                for query in range(queries):
                    weight = code.load(code.f32, code.address(weights, (weights_stride, query), (index, F32_BYTES)))
                    weight_16 = code.broadcast(weight, code.f32x16)
                    updated += [
                        code.fma(weight_16, value, sums[len(updated) + position])
                        for position, value in enumerate(loaded)
                    ]
                return updated

            before = [code.load(code.f32x16, place) for place in targets]
            for place, total in zip(targets, code.loop(slots, before, body), strict=True):
                code.store(total, place)
            return []

        code.loop(parts, [], part)

    return vector_function(8, write)
