"""Policies that decide when a denoising step may reuse what an earlier step has computed, for one row of a pass.

The residual of a transformer (what its blocks add to their input) changes little from one step to the next, so the
residual of an earlier step can replace computing the blocks. Each policy predicts the change in its own way:

- `FirstBlock`: how much the first block's residual has changed (first-block cache, ParaAttention).
- `Polynomial`: a polynomial of how much the timestep's embedding has changed (TeaCache, arXiv 2411.19108).
- `Magnitude`: how the size of residuals is known to change from step to step (MagCache, arXiv 2506.09045).

The first and the last equal Diffusers' hooks, which a test holds; the last two need a `StepCalibration`. What a policy
remembers belongs to the request, so it is batched, saved and resumed with it. Knows nothing about transformers
(`tessera.diffusion.step_cache.blocks` does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import torch

StepCacheKind = Literal["first_block", "polynomial", "magnitude"]
"""Name of a policy in requests and settings."""
DEFAULT_THRESHOLDS: dict[StepCacheKind, float] = {"first_block": 0.15, "polynomial": 0.15, "magnitude": 0.12}
"""Threshold of each kind for requests that name none; relative change of the residual."""
MAX_SKIPPED_IN_A_ROW = 3
"""Most steps that `Magnitude` skips in a row."""
COMPUTED_FIRST_SHARE = 0.2
"""Share (0 to 1) of a clip's steps, from the first, that `Magnitude` always computes: they decide the layout."""
PREFIX = "cache."
"""Beginning of the names of step caches' entries in a request's memory."""
RESIDUAL = "residual"
"""Name under which a row's last computed residual is remembered."""


class StepCalibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured changes between a model's steps, from one uncached clip (`python -m tessera_video.calibrate`)."""

    coefficients: list[float]
    """Polynomial coefficients, highest power first: from the relative change of the timestep's embedding to that of the
    residual."""
    least: float
    """Smallest change of the embedding that the polynomial was fitted on; a smaller one is clamped to it."""
    most: float
    """Largest change of the embedding that the polynomial was fitted on; a larger one is clamped to it."""
    ratios: list[float]
    """Norm of each step's residual divided by the norm of the step before; one for each step, the first is 1."""


@dataclass(frozen=True)
class StepCache:
    """The step cache that a request asks for."""

    kind: StepCacheKind
    threshold: float
    """Largest predicted change with which a step still skips; above 0. Larger is faster and less exact."""


@dataclass
class RowMemory:
    """A policy's memory of one row of a request, stored as entries of the request's own memory."""

    values: MutableMapping[str, torch.Tensor | float]
    name: str
    """Half of guidance that the row computes: `prompt` or `negative`."""

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return a remembered tensor; None when there is none."""
        found = self.values.get(f"{PREFIX}{self.name}.{name}")
        return found if isinstance(found, torch.Tensor) else None

    def number(self, name: str) -> float:
        """Return a remembered number; 0 before the first `put`."""
        found = self.values.get(f"{PREFIX}{self.name}.{name}", 0.0)
        assert not isinstance(found, torch.Tensor)
        return found

    def put(self, name: str, value: torch.Tensor | float) -> None:
        """Remember a value. Replaces the old one, never changes it in place, because snapshots share it."""
        self.values[f"{PREFIX}{self.name}.{name}"] = value


class StepPolicy(ABC):
    """Decides for one row of one step. Call `change`, then `skips`, then `computed` if the row was computed."""

    after_first_block: bool
    """Whether the decision needs the first block's residual, so that the first block always runs."""

    @abstractmethod
    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """Return the relative change of the signal, a scalar on the device; None when there is nothing to compare with.

        Args:
            memory: the row's memory.
            signal: the first block's residual if `after_first_block`, else the timestep's embedding.
        """

    @abstractmethod
    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """Return whether the remembered residual replaces computing the row. Counts the step: call it once a step."""

    def computed(self, memory: RowMemory, signal: torch.Tensor, residual: torch.Tensor) -> None:  # noqa: ARG002
        """Remember the residual of a row that was computed."""
        memory.put(RESIDUAL, residual)


@dataclass
class FirstBlock(StepPolicy):
    """Skips while the first block's residual differs little from that of the last computed step."""

    threshold: float
    after_first_block: bool = field(default=True, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """Implement `StepPolicy.change`."""
        before = memory.tensor("first")
        return None if before is None else relative(signal, before)

    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """Implement `StepPolicy.skips`."""
        return memory.tensor(RESIDUAL) is not None and change is not None and change <= self.threshold

    def computed(self, memory: RowMemory, signal: torch.Tensor, residual: torch.Tensor) -> None:
        """Implement `StepPolicy.computed`."""
        super().computed(memory, signal, residual)
        memory.put("first", signal)


@dataclass
class Polynomial(StepPolicy):
    """Skips while the predicted changes since the last computed step sum up to less than the threshold."""

    threshold: float
    calibration: StepCalibration
    step: int
    steps: int
    after_first_block: bool = field(default=False, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """Implement `StepPolicy.change`."""
        before = memory.tensor("signal")
        memory.put("signal", signal)
        return None if before is None else relative(signal, before)

    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """Implement `StepPolicy.skips`."""
        if change is None or self.step in (0, self.steps - 1) or memory.tensor(RESIDUAL) is None:
            memory.put("sum", 0.0)
            return False
        total = memory.number("sum") + max(0.0, self._predicted(change))
        skipped = total < self.threshold
        memory.put("sum", total if skipped else 0.0)
        return skipped

    def _predicted(self, change: float) -> float:
        at, value = min(max(change, self.calibration.least), self.calibration.most), 0.0
        for coefficient in self.calibration.coefficients:
            value = value * at + coefficient
        return value


@dataclass
class Magnitude(StepPolicy):
    """Skips while the calibrated ratios say that the residual's size drifts little."""

    threshold: float
    calibration: StepCalibration
    step: int
    steps: int
    after_first_block: bool = field(default=False, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002 - needs none
        """Implement `StepPolicy.change`."""
        return None

    def skips(self, memory: RowMemory, change: float | None) -> bool:  # noqa: ARG002 - needs none
        """Implement `StepPolicy.skips`."""
        if self.step < int(COMPUTED_FIRST_SHARE * self.steps + 0.5):
            return False
        ratio = (memory.number("drift") + 1.0) * self._ratio()
        error, count = memory.number("error") + abs(1.0 - ratio), memory.number("count") + 1
        skipped = memory.tensor(RESIDUAL) is not None and error <= self.threshold and count <= MAX_SKIPPED_IN_A_ROW
        for name, value in (("drift", ratio - 1.0), ("error", error), ("count", count)):
            memory.put(name, value if skipped else 0.0)
        return skipped

    def _ratio(self) -> float:
        """Return this step's ratio: the nearest calibrated one when the clip has another number of steps."""
        ratios = self.calibration.ratios
        if self.steps == 1:
            return ratios[-1]
        return ratios[round(self.step * (len(ratios) - 1) / (self.steps - 1))]


def policy_of(cache: StepCache, calibration: StepCalibration | None, *, step: int, steps: int) -> StepPolicy:
    """Make the policy of a request for one of its steps. All kinds but `first_block` need a calibration."""
    if cache.kind == "first_block":
        return FirstBlock(cache.threshold)
    assert calibration is not None
    kinds = {"polynomial": Polynomial, "magnitude": Magnitude}
    return kinds[cache.kind](cache.threshold, calibration, step, steps)


def relative(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference divided by the mean absolute value of `before`: a scalar on the device."""
    return (now - before).abs().mean() / before.abs().mean()
