"""Types by which an op describes its benchmark: cases to check and to time, and launch configurations to tune.

Every folder with a `triton.py` has a `bench.py` with `cases()`, and with `choices()` if its launcher chooses between
configurations. Knows nothing of devices, clocks or files. Imports no Triton, and a `bench.py` imports none at its top
level.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tessera_kernels.roofline import Cost

LaunchConfig = Mapping[str, int]
"""A launch configuration: `num_warps`, `num_stages` and the kernel's own `tl.constexpr` arguments by name."""


def relative_rms(got: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS of `got - exact` over the RMS of `exact`; infinite if shapes differ or only one of the two is finite."""
    found, wanted = got.double(), exact.double()
    if found.shape != wanted.shape or bool((found.isfinite() != wanted.isfinite()).any()):
        return float("inf")
    finite = wanted.isfinite()
    found, wanted = found[finite], wanted[finite]
    if not wanted.numel():
        return 0.0
    size = float(wanted.square().mean().sqrt())
    difference = float((found - wanted).square().mean().sqrt())
    return difference / size if size else (0.0 if difference == 0 else float("inf"))


def unequal(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Fraction of elements that are not equal; 1 if the shapes differ."""
    return 1.0 if got.shape != exact.shape else float((got != exact).double().mean()) if got.numel() else 0.0


@dataclass(frozen=True)
class BenchCase:
    """One shape of an op, to be checked against the reference and timed.

    Attributes:
        name: unique within the op; names the model, what it does, rows and dtype: `Llama-3-8B decode 64 rows bf16`.
        make: creates the arguments of `run` on a device; torch's generators are seeded before it is called.
        run: launches the kernel (the function in the op's `triton.py`, imported when called) and returns its results,
            also those that it writes in place.
        exact: computes the same in plain torch, on arguments of its own, and returns results in the same order.
        bound: the largest allowed `error` of any result.
        cost: least FLOPs and bytes of one run.
        peers: other implementations by name, called with the arguments of `run`: cuBLAS, `torch._scaled_mm`, SDPA.
        tiny: whether the shape is small enough for the interpreter; a tiny case is checked everywhere and never timed.
        goal: the fraction of the roofline that this shape should reach; None if it is only reported.
        error: error of one result against the exact one; `unequal` for results that must agree bit for bit.
    """

    name: str
    make: Callable[[torch.device], Sequence[Any]]
    run: Callable[..., Any]
    exact: Callable[..., Any]
    bound: float
    cost: Cost
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    tiny: bool = False
    goal: float | None = None
    error: Callable[[torch.Tensor, torch.Tensor], float] = relative_rms


@dataclass(frozen=True)
class TuningChoice:
    """A bucket of shapes whose launch configuration is chosen by time.

    Attributes:
        dtype: the dtype that the launcher passes to `tuning.lookup`.
        bucket: the bucket that the launcher passes to `tuning.lookup`.
        make: creates the arguments of `run` on a device, as `BenchCase.make` does.
        run: launches the kernel, as `BenchCase.run` does, with the configuration before the other arguments.
        configs: the launch configurations to time.
    """

    dtype: str
    bucket: str
    make: Callable[[torch.device], Sequence[Any]]
    run: Callable[..., Any]
    configs: Sequence[LaunchConfig]


def results(returned: Any) -> list[torch.Tensor]:
    """The tensors that a run returned, in order; nested sequences are flattened."""
    if isinstance(returned, torch.Tensor):
        return [returned]
    return [] if returned is None else [tensor for part in returned for tensor in results(part)]


def measured_ops() -> list[str]:
    """Names of the ops that have a `bench.py`."""
    return sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/bench.py"))


def cases_of(op: str) -> list[BenchCase]:
    """The cases of an op, in its own order."""
    found: Iterator[BenchCase] = importlib.import_module(f"tessera_kernels.{op}.bench").cases()
    return list(found)


def choices_of(op: str) -> list[TuningChoice]:
    """The tuning choices of an op; empty if its `bench.py` has no `choices`."""
    choices = getattr(importlib.import_module(f"tessera_kernels.{op}.bench"), "choices", None)
    return list(choices()) if choices is not None else []
