"""Measures seconds of runs on a CUDA device, and the peaks of the device. Imports no Triton and knows no ops.

A run is captured as a CUDA graph if possible, so that the time that Python takes to launch it does not count. Every run
starts with cold caches: between two runs more bytes than the caches hold are written.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tessera_kernels.roofline import Peaks

FLUSH_BYTES = 256 * 2**20
"""Bytes written between runs: more than the last-level cache of any chip holds."""
TIMED_SECONDS = 0.15
"""Total seconds of the runs whose median counts; bounds the number of runs together with `MIN_RUNS` and `MAX_RUNS`."""
MIN_RUNS, MAX_RUNS = 5, 100
PEAK_SIDE = 8192
"""Rows and columns of the square matrices whose product measures the peak FLOPs."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of a run, and whether it ran as a CUDA graph."""

    seconds: float
    captured: bool


def timed(run: Callable[[], Any]) -> Timing:
    """Measure a run on the current CUDA device, after three runs to warm up."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = captured(run)
    again: Callable[[], Any] = run if graph is None else graph.replay
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    once = statistics.median(_seconds(again, flush, 3))
    count = min(max(int(TIMED_SECONDS / max(once, 1e-7)), MIN_RUNS), MAX_RUNS)
    return Timing(statistics.median(_seconds(again, flush, count)), graph is not None)


def captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph | None:
    """The run as a CUDA graph; None if it does something that cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def _seconds(run: Callable[[], Any], flush: torch.Tensor, count: int) -> list[float]:
    pairs = []
    for _ in range(count):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in pairs]


def peaks() -> Peaks:
    """Peaks of the current CUDA device, without the units that torch cannot use on it."""
    free, _ = torch.cuda.mem_get_info()
    size = min(2 * 2**30, free // 8)
    bandwidth = 2 * size / timed(_copy(size)).seconds
    found = {}
    for unit, product in _products().items():
        try:
            run = product()
            found[unit] = 2 * PEAK_SIDE**3 / timed(run).seconds
        except (RuntimeError, TypeError):  # this chip or this torch does not support the unit
            torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return Peaks(bandwidth, found)


def _copy(size: int) -> Callable[[], Any]:
    source, target = (torch.empty(size, dtype=torch.int8, device="cuda") for _ in range(2))
    return lambda: target.copy_(source)


def _products() -> dict[str, Callable[[], Callable[[], Any]]]:
    """Functions by unit; each creates two large matrices and returns a function that multiplies them."""

    def floats(dtype: torch.dtype) -> Callable[[], Any]:
        a, b = (torch.randn(PEAK_SIDE, PEAK_SIDE, device="cuda").to(dtype) for _ in range(2))
        return lambda: torch.mm(a, b)

    def float8() -> Callable[[], Any]:
        a, b = (torch.randn(PEAK_SIDE, PEAK_SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def int8() -> Callable[[], Any]:
        a, b = (torch.randint(-127, 127, (PEAK_SIDE, PEAK_SIDE), dtype=torch.int8, device="cuda") for _ in range(2))
        return lambda: torch._int_mm(a, b.t())

    return {
        "bf16": lambda: floats(torch.bfloat16),
        "fp16": lambda: floats(torch.float16),
        "fp8": float8,
        "int8": int8,
        "fp32": lambda: floats(torch.float32),
    }
