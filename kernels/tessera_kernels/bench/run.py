"""Checks and times the cases of one op on one device. Returns rows that can be written as JSON.

No kernel can end a benchmark: an exception becomes the fault of its case. An illegal memory access destroys the CUDA
context of the process, so `bench` calls these functions in processes that it can replace. Knows nothing of files.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, cases_of, results
from tessera_kernels.bench.measure import timed
from tessera_kernels.roofline import Peaks, fraction, limited_by


@dataclass(frozen=True)
class RunMode:
    """The way in which cases are run, and until when.

    Attributes:
        interpret: whether they run in Triton's interpreter and not on a GPU.
        deadline: moment of `time.monotonic()`, in seconds, after which no case is started.
    """

    interpret: bool
    deadline: float

    @property
    def device(self) -> torch.device:
        """The device that inputs are created on."""
        return torch.device("cpu" if self.interpret else "cuda")


def checks_of(op: str, mode: RunMode) -> list[dict[str, Any]] | None:
    """Compare every case of an op with its reference; None if time ran out before the last case."""
    found = []
    try:
        cases = cases_of(op)
    except Exception as error:  # noqa: BLE001 - an op that cannot be imported here is one fault among others
        return [{"name": op, "ok": False, "fault": _describe_error(error)}]
    for case in cases:
        if time.monotonic() > mode.deadline:
            return None
        if case.tiny or not mode.interpret:
            found.append(check(case, mode.device))
    return found


def check(case: BenchCase, device: torch.device) -> dict[str, Any]:
    """Compare one case with its reference: the errors of its results, and whether they are within its bound."""
    row: dict[str, Any] = {"name": case.name, "bound": case.bound, "errors": [], "ok": False}
    try:
        # Each function gets arguments of its own, because both may write in place.
        got, exact = (results(function(*_make_inputs(case, device))) for function in (case.run, case.exact))
        errors = [case.error(*pair) for pair in zip(got, exact, strict=True)]
        worst = max(errors, default=0.0)
        row["ok"] = all(error <= case.bound for error in errors)
        row["errors"] = [error if isfinite(error) else None for error in errors]  # JSON has no infinity
        row["fault"] = "" if row["ok"] else f"an error of {worst:.3g}, and {case.bound:.3g} is allowed"
        _release(device)
    except Exception as error:  # noqa: BLE001 - a kernel may fail in any mode; the others are still to be measured
        row |= {"ok": False, "fault": _describe_error(error)}
    return row


def times_of(op: str, mode: RunMode, limits: Peaks) -> list[dict[str, Any]] | None:
    """Time every realistic case of an op, alone on the GPU; None if time ran out before the last case."""
    found = []
    try:
        cases = cases_of(op)
    except Exception as error:  # noqa: BLE001 - as when it is checked
        return [{"name": op, "goal": None, "fault": _describe_error(error)}]
    for case in cases:
        if time.monotonic() > mode.deadline:
            return None
        if not case.tiny:
            found.append(_measure(case, mode.device, limits))
            sys.stdout.write(f"{op} / {_summary(found[-1])}\n")
            sys.stdout.flush()
    return found


def _measure(case: BenchCase, device: torch.device, limits: Peaks) -> dict[str, Any]:
    row: dict[str, Any] = {"name": case.name, "goal": case.goal}
    try:
        inputs = _make_inputs(case, device)
        ours = timed(lambda: case.run(*inputs))
        row |= {
            "seconds": ours.seconds,
            "captured": ours.captured,
            "bytes_per_second": case.cost.moved / ours.seconds,
            "flops_per_second": case.cost.flops / ours.seconds,
            "fraction": fraction(case.cost, limits, ours.seconds),
            "limited_by": limited_by(case.cost, limits),
            "peers": {peer: _peer(call, inputs) for peer, call in case.peers.items()},
        }
        _release(device)
    except Exception as error:  # noqa: BLE001 - as when it is checked
        row["fault"] = _describe_error(error)
    return row


def _peer(call: Any, inputs: Sequence[Any]) -> float | None:
    """Seconds of a peer; None if this torch or this chip cannot run it."""
    try:
        return timed(lambda: call(*inputs)).seconds
    except Exception:  # noqa: BLE001 - a peer that cannot run is no fault of ours
        return None


def _make_inputs(case: BenchCase, device: torch.device) -> Sequence[Any]:
    torch.manual_seed(0)
    return case.make(device)


def _release(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _summary(row: dict[str, Any]) -> str:
    if "fault" in row:
        return f"{row['name']}: {row['fault']}"
    return f"{row['name']}: {row['seconds'] * 1e6:,.1f} us, {row['fraction']:.0%} of the limit"
