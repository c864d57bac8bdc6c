"""How an op describes what is measured of it: shapes to time and check, and choices to tune.

Every folder with a `triton.py` has a `bench.py` with `cases()`, and with `choices()` where a launcher chooses between
configurations. Does not know devices, clocks or files; imports no Triton, and neither does a `bench.py` at its top.
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
"""Of a launch: `num_warps`, `num_stages` and the kernel's own constants by name."""


def relative_rms(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the difference over that of what is exact; infinite where `got` is not finite alone."""
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
    """The share of elements that are not equal."""
    return 1.0 if got.shape != exact.shape else float((got != exact).double().mean()) if got.numel() else 0.0


@dataclass(frozen=True)
class BenchCase:
    """One shape of an op.

    Attributes:
        name: unique within the op: the model, what it does, rows, dtype, as in `Llama-3-8B decode 64 rows bf16`.
        make: the arguments of `run`, made on a device; torch's generators are seeded before it is called.
        run: launches the kernel (the function in the op's `triton.py`, imported when called) and returns its results,
            also where it writes in place.
        exact: the same in plain torch, on arguments of its own: results in the same order.
        bound: the largest relative error (`error`) of any result.
        cost: of one run; FLOPs and bytes that the op cannot do without.
        peers: what else computes this, by name, with the arguments of `run`: cuBLAS, `torch._scaled_mm`, SDPA.
        tiny: small enough for the interpreter; checked everywhere, timed nowhere.
        goal: the fraction of the limit that this shape should reach; None where it is shown and not judged.
        error: how wrong one result is; for what has to be equal bit for bit, `unequal`.
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
    """A bucket of shapes whose configuration is to be chosen by time.

    Attributes:
        dtype: as the launcher asks `tuning.lookup` for it.
        bucket: likewise.
        make: as `BenchCase.make`.
        run: as `BenchCase.run`, with the configuration before the other arguments.
        configs: what to choose from.
    """

    dtype: str
    bucket: str
    make: Callable[[torch.device], Sequence[Any]]
    run: Callable[..., Any]
    configs: Sequence[LaunchConfig]


def results(returned: Any) -> list[torch.Tensor]:
    """The tensors of what a run returned, in order."""
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
    """What can be tuned of an op."""
    choices = getattr(importlib.import_module(f"tessera_kernels.{op}.bench"), "choices", None)
    return list(choices()) if choices is not None else []
