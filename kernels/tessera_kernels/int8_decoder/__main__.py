"""Times of the parts of a compiled step, beside torch's: `python -m tessera_kernels.int8_decoder`.

Shapes of SmolLM2-135M with random weights, the best of several runs each; parts run on one thread, whole steps on one
thread and on all. Compare ratios of one run only, on a machine that does nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from tessera_kernels.cpu import instructions
from tessera_kernels.int8_decoder import Decoder, DecoderConfig, DecoderLayer, DecoderLinear, gemm
from tessera_kernels.int8_decoder.attention import attend_rows
from tessera_kernels.int8_decoder.layout import packed
from tessera_kernels.int8_linear import quantize_weight
from tessera_kernels.paged_attention import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

RUNS = 15
"""Runs of each measurement; the fastest counts."""
INPUTS, OUTLIERS = 576, 16
HEAD, GATE_UP = 49_152, 3_072
"""Outputs. The head is the largest linear layer; no cache holds its 28 MB."""
HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
LAYERS, INNER, LONGEST = 30, 1_536, 1_024
GROUP = 128


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of `RUNS` calls."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def linears(outputs: int, inputs: int = INPUTS, group: int | None = None) -> None:
    """Print times of one linear layer for several numbers of rows."""
    generator = np.random.default_rng(0)
    weight_NK = generator.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    floats = generator.standard_normal((OUTLIERS + 2, outputs)).astype(np.float32)
    weights, rest = packed(weight_NK, group or inputs, floats[0], floats[1], floats[2:])
    fields = np.array([0, outputs, inputs, group or inputs, rest, 0, OUTLIERS, 0])
    groups = 1 if group is None else -(-inputs // group)
    transposed_KN, float_NK = torch.from_numpy(weight_NK).t(), torch.from_numpy(weight_NK).float()
    scales = "" if group is None else f", a scale for {group} inputs"
    ours_is = "ours with scales and outlier columns"
    print(f"{outputs} x {inputs}{scales}, {ours_is}; torch._int_mm; torch in float32; int_mm ÷ ours")
    for tokens in (1, 4, 16, 64, 256):
        x_TK = generator.integers(-127, 128, (tokens, inputs)).astype(np.int8)
        work = (
            (x_TK.astype(np.int16) + 128).astype(np.uint8),
            np.ones((groups, tokens), np.float32),
            np.ones((tokens, OUTLIERS), np.float32),
            np.empty(gemm.TILE_ROWS * outputs, np.float32),
        )
        out = np.empty((tokens, outputs), np.float32)
        ours = best(
            partial(gemm.multiply, (0, outputs // instructions.LANES), (0, tokens), fields, weights, work, out, False)
        )
        rows = torch.from_numpy(x_TK)
        integers = best(partial(torch._int_mm, rows, transposed_KN))
        floats_s = best(partial(functional.linear, rows.float(), float_NK))
        operations, read = 2 * tokens * outputs * inputs, outputs * inputs
        speed = f"{operations / ours / 1e9:6.0f} GOP/s {read / ours / 1e9:5.1f} GB/s"
        theirs = f"{1e3 * integers:8.2f} ms   {1e3 * floats_s:8.2f} ms"
        print(f"  {tokens:4} rows   {1e3 * ours:8.2f} ms {speed}   {theirs}   {integers / ours:6.2f} x")


def attention() -> None:
    """Print times of attention in one layer: for one row, and for six rows of a prompt."""
    generator = np.random.default_rng(0)
    nothing = np.zeros((0, 0, 0), np.float32)
    for context, count in ((200, 1), (1000, 1), (1000, 6)):
        pages = np.arange(-(-context // PAGE), dtype=np.int32)
        keys, values = (generator.standard_normal((len(pages), PAGE, KV_HEADS, DIM)).astype(np.float32) for _ in "kv")
        by_element = np.ascontiguousarray(keys.reshape(-1, 1, PAGE, KV_HEADS, DIM).transpose(0, 3, 1, 4, 2))
        query = generator.standard_normal((HEADS * count, DIM)).astype(np.float32)
        scores, out = np.empty((HEADS * count, len(pages) * PAGE), np.float32), np.empty_like(query)
        cache, sums = (by_element, values, nothing, nothing, pages), np.empty(len(query) + 1, np.float32)
        rest = (context - count + 1, 0, (0, KV_HEADS), count, np.float32(0.125), scores, sums, out)
        key, value = [
            torch.from_numpy(one).view(1, -1, KV_HEADS, DIM)[:, :context].transpose(1, 2) for one in (keys, values)
        ]
        rows = torch.randn(1, HEADS, count, DIM)
        spent = best(partial(attend_rows, query, *cache, *rest))
        theirs = best(partial(functional.scaled_dot_product_attention, rows, key, value, enable_gqa=True))
        print(
            f"attention of {count} rows over {context} positions: {1e6 * spent:6.1f} us, torch's on gathered keys "
            f"{1e6 * theirs:6.1f} us: {theirs / spent:.2f} x"
        )


def decoder(keys: torch.dtype) -> Decoder:
    """A decoder of `LAYERS` layers with a cache of this dtype that has room for sixteen sequences."""
    torch.manual_seed(0)
    ones_C, outlier_columns_M = torch.ones(INPUTS), torch.arange(OUTLIERS)

    def linear(outputs: int, inputs: int, group: int | None = None) -> DecoderLinear:
        return DecoderLinear(
            quantize_weight(torch.randn(outputs, inputs) / inputs**0.5, outlier_columns_M), None, group
        )

    layers = [
        DecoderLayer(
            ones_C,
            linear((HEADS + 2 * KV_HEADS) * DIM, INPUTS),
            None,
            None,
            linear(INPUTS, HEADS * DIM),
            ones_C,
            linear(2 * INNER, INPUTS),
            linear(INPUTS, INNER, GROUP),
            None,
        )
        for _ in range(LAYERS)
    ]
    pages = 16 * LONGEST // PAGE
    caches = PagedKV.stacked(LAYERS, pages, PAGE, KV_HEADS, (DIM, DIM), dtype=keys, device=torch.device("cpu"))
    for cache in caches:  # the kernel maps memory that was never written to one page of zeros
        for tensor in cache.tensors:
            tensor.copy_(torch.randn(tensor.shape[1:])) if tensor.is_floating_point() else tensor.random_(-100, 100)
    sizes = DecoderConfig(INPUTS, HEADS, KV_HEADS, DIM, "silu", 1e-5, DIM**-0.5)
    return Decoder(sizes, layers, ones_C, linear(HEAD, INPUTS), caches)


def step(model: Decoder, counts: list[int], contexts: list[int], threads: int) -> float:
    """Seconds of a step.

    Args:
        model: the decoder, from `decoder`.
        counts: new tokens of each sequence.
        contexts: positions of each sequence, the new ones included.
        threads: threads to run on.
    """
    tokens, of_one = sum(counts), LONGEST // PAGE
    pages_BM = torch.randperm(16 * of_one)[: len(counts) * of_one].to(torch.int32).view(len(counts), of_one)
    slots_T = torch.cat(
        [
            pages_BM[index, places // PAGE].long() * PAGE + places % PAGE
            for index, (count, context) in enumerate(zip(counts, contexts, strict=True))
            for places in (torch.arange(context - count, context),)
        ]
    )
    ragged = Ragged(pages_BM, torch.tensor(contexts), counts)
    x_TC, rotary_TD = torch.randn(tokens, INPUTS), (torch.ones(tokens, DIM), torch.zeros(tokens, DIM))
    last_R = torch.tensor(counts).cumsum(0) - 1
    return best(lambda: model.run(x_TC.clone(), rotary_TD, slots_T, ragged, last_R, threads=threads))


def steps() -> None:
    """Print times of whole steps: decode rows at 200 positions, and prompts."""
    for keys in (torch.float32, torch.float16, torch.int8):
        model = decoder(keys)
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            for rows in (1, 4, 16):
                spent = step(model, [1] * rows, [200] * rows, threads)
                read = model.nbytes / spent / 1e9
                print(f"{keys}, {threads} threads: {rows:2} rows at 200 {1e3 * spent:6.1f} ms, weights {read:.1f} GB/s")
            for tokens in (128, 512, 980):
                spent = step(model, [tokens], [tokens], threads)
                each = 1e6 * spent / tokens
                print(f"{keys}, {threads} threads: a prompt of {tokens} {1e3 * spent:6.0f} ms, {each:.0f} us a token")


if __name__ == "__main__":
    if not instructions.available():
        raise SystemExit("this processor has no AVX-512 VNNI, or Numba is not installed")
    torch.set_num_threads(1)
    linears(HEAD)
    linears(GATE_UP)
    linears(INPUTS, INNER)
    linears(INPUTS, INNER, GROUP)
    attention()
    steps()
