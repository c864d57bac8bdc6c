"""When a denoising step may take what an earlier step has computed: policies over numbers, one row of a pass at a time.

What a transformer's blocks add to their input (their residual) changes little from one step to the next, so it can
stand in for computing them. Three ways to tell when: by how much the first block's residual has changed (first-block
cache, ParaAttention), by a polynomial of how much the timestep's embedding has (TeaCache, arXiv 2411.19108), by how the
size of residuals is known to change from step to step (MagCache, arXiv 2506.09045). The first and the last equal
Diffusers' hooks, which a test holds; the second and third need `StepCalibration`. What a policy remembers is the
request's, so it is batched, saved and resumed with it. Does not know transformers
(`tessera.diffusion.step_cache.blocks`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import torch

StepCacheKind = Literal["first_block", "polynomial", "magnitude"]
DEFAULT_THRESHOLDS: dict[StepCacheKind, float] = {"first_block": 0.15, "polynomial": 0.15, "magnitude": 0.12}
MOST_SKIPPED = 3
"""Steps in a row that `Magnitude` skips."""
KEPT_SHARE = 0.2
"""Of the first steps, which `Magnitude` never skips: there the picture is laid out."""
PREFIX = "cache."
RESIDUAL = "residual"


class StepCalibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model's steps change, measured once over an uncached clip (`python -m tessera_video.calibrate`)."""

    coefficients: list[float]
    """Of a polynomial, highest power first: from the change of the timestep's embedding to that of the residual."""
    least: float
    most: float
    """Changes that it was fitted on; outside, the nearest of them counts."""
    ratios: list[float]
    """Size of each step's residual over that of the step before; the first is 1."""


@dataclass(frozen=True)
class StepCache:
    """What a request asks for: how steps are skipped, and how much error is taken for it (larger is faster)."""

    kind: StepCacheKind
    threshold: float


@dataclass
class RowMemory:
    """What is remembered of one row of a request: its values in the request's own memory."""

    values: MutableMapping[str, torch.Tensor | float]
    name: str
    """Which half of guidance."""

    def tensor(self, name: str) -> torch.Tensor | None:
        """A remembered tensor, if there is one."""
        found = self.values.get(f"{PREFIX}{self.name}.{name}")
        return found if isinstance(found, torch.Tensor) else None

    def number(self, name: str) -> float:
        """A remembered number; 0 before the first."""
        found = self.values.get(f"{PREFIX}{self.name}.{name}", 0.0)
        assert not isinstance(found, torch.Tensor)
        return found

    def put(self, name: str, value: torch.Tensor | float) -> None:
        """Remember; replaces, and never changes in place."""
        self.values[f"{PREFIX}{self.name}.{name}"] = value


class StepPolicy(ABC):
    """Decides for one row of one step. Called in this order: `change`, `skips`, and after computing `computed`."""

    after_first_block: bool
    """Whether it decides by what the first block does, which then is always run."""

    @abstractmethod
    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """How much what it looks at has changed, a number on the device; None: there is nothing to compare.

        Args:
            memory: of the row.
            signal: the first block's residual, or the timestep's embedding.
        """

    @abstractmethod
    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """Whether the remembered residual stands in. Counts the step."""

    def computed(self, memory: RowMemory, signal: torch.Tensor, residual: torch.Tensor) -> None:  # noqa: ARG002
        """The step was computed: remember what it did."""
        memory.put(RESIDUAL, residual)


@dataclass
class FirstBlock(StepPolicy):
    """Skips while the first block's residual is nearly that of the last computed step."""

    threshold: float
    after_first_block: bool = field(default=True, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """See `StepPolicy.change`."""
        before = memory.tensor("first")
        return None if before is None else relative(signal, before)

    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """See `StepPolicy.skips`."""
        return memory.tensor(RESIDUAL) is not None and change is not None and change <= self.threshold

    def computed(self, memory: RowMemory, signal: torch.Tensor, residual: torch.Tensor) -> None:
        """See `StepPolicy.computed`."""
        super().computed(memory, signal, residual)
        memory.put("first", signal)


@dataclass
class Polynomial(StepPolicy):
    """Skips while the changes since the last computed step, as the polynomial tells them, sum up to little."""

    threshold: float
    calibration: StepCalibration
    step: int
    steps: int
    after_first_block: bool = field(default=False, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:
        """See `StepPolicy.change`."""
        before = memory.tensor("signal")
        memory.put("signal", signal)
        return None if before is None else relative(signal, before)

    def skips(self, memory: RowMemory, change: float | None) -> bool:
        """See `StepPolicy.skips`."""
        if change is None or self.step in (0, self.steps - 1) or memory.tensor(RESIDUAL) is None:
            memory.put("sum", 0.0)
            return False
        total = memory.number("sum") + max(0.0, self._told(change))
        skipped = total < self.threshold
        memory.put("sum", total if skipped else 0.0)
        return skipped

    def _told(self, change: float) -> float:
        at, value = min(max(change, self.calibration.least), self.calibration.most), 0.0
        for coefficient in self.calibration.coefficients:
            value = value * at + coefficient
        return value


@dataclass
class Magnitude(StepPolicy):
    """Skips while the residual's size, by the calibrated ratios, drifts little; `MOST_SKIPPED` in a row at most."""

    threshold: float
    calibration: StepCalibration
    step: int
    steps: int
    after_first_block: bool = field(default=False, init=False)

    def change(self, memory: RowMemory, signal: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002 - needs none
        """See `StepPolicy.change`."""
        return None

    def skips(self, memory: RowMemory, change: float | None) -> bool:  # noqa: ARG002 - needs none
        """See `StepPolicy.skips`."""
        if self.step < int(KEPT_SHARE * self.steps + 0.5):
            return False
        ratio = (memory.number("drift") + 1.0) * self._ratio()
        error, count = memory.number("error") + abs(1.0 - ratio), memory.number("count") + 1
        skipped = memory.tensor(RESIDUAL) is not None and error <= self.threshold and count <= MOST_SKIPPED
        for name, value in (("drift", ratio - 1.0), ("error", error), ("count", count)):
            memory.put(name, value if skipped else 0.0)
        return skipped

    def _ratio(self) -> float:
        """Of this step; the nearest calibrated one where clips have another number of steps."""
        ratios = self.calibration.ratios
        if self.steps == 1:
            return ratios[-1]
        return ratios[round(self.step * (len(ratios) - 1) / (self.steps - 1))]


def policy_of(cache: StepCache, calibration: StepCalibration | None, *, step: int, steps: int) -> StepPolicy:
    """The policy of a request at one of its steps. All but `first_block` need a calibration."""
    if cache.kind == "first_block":
        return FirstBlock(cache.threshold)
    assert calibration is not None
    kinds = {"polynomial": Polynomial, "magnitude": Magnitude}
    return kinds[cache.kind](cache.threshold, calibration, step, steps)


def relative(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference over mean absolute value: a number on the device."""
    return (now - before).abs().mean() / before.abs().mean()
