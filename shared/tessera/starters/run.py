"""One run of a recipe: stages that go on where their last checkpoint stopped, with progress, a time limit, and an
orderly stop at Ctrl-C.

Every step is seeded by the run's seed, its stage and its number alone, so a run that was interrupted ends with the
weights of one that was not (on the same machine). Does not know what is trained.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
from torch import nn

from tessera.starters import checkpoint
from tessera.starters.checkpoint import Position
from tessera.starters.data_parallel import ALIGN_EVERY, DataParallelGroup

CHECKPOINT_S = 120.0
PROGRESS_S = 15.0


class Stage(Protocol):
    """One optimisation of a recipe.

    `step(index)` is one update. It draws its data and sets its learning rate from the run's seed and `index` alone;
    torch's own generator is seeded before each step. It returns what is worth showing.
    """

    name: str
    steps: int

    def modules(self) -> dict[str, nn.Module]:
        """What is trained, by name: what a checkpoint holds."""
        ...

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """What trains them, by name."""
        ...

    def step(self, index: int) -> dict[str, float]:
        """One update."""
        ...


class TrainingPaused(Exception):  # noqa: N818 - no error: the run goes on another time
    """The time limit was reached or somebody asked to stop; everything is in the checkpoint."""


class Run:
    """See the module.

    Args:
        seed: of everything.
        device: to train on.
        work: folder for checkpoints and whatever a recipe keeps between runs.
        output: the empty directory that a recipe fills at its end.
        report: told one line at a time.
        minutes: of training until it pauses; None trains to the end.
        sharing: this process' place among those that train together; None: alone.
    """

    def __init__(
        self,
        *,
        seed: int,
        device: torch.device,
        work: Path,
        output: Path,
        report: Callable[[str], None],
        minutes: float | None = None,
        group: DataParallelGroup | None = None,
    ) -> None:
        self.seed = seed
        self.device = device
        self.work = work
        self.output = output
        self.report = report
        self.group = group or DataParallelGroup()
        self.seconds = 0.0
        """That the stages took so far, in all runs."""
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes
        self._stop = threading.Event()
        work.mkdir(parents=True, exist_ok=True)

    def seed_of(self, *labels: str | int) -> int:
        """A number for a random generator: the same for the same run seed and labels, on every machine."""
        text = "/".join(str(label) for label in (self.seed, *labels))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def reseed(self, *labels: str | int) -> None:
        """Seed torch's generator; before modules are made, so that their first weights are always the same."""
        torch.manual_seed(self.seed_of(*labels))

    def check_time(self) -> None:
        """For long work outside stages: pause when the limit is reached or somebody asked to stop.

        Raises:
            TrainingPaused: it is.
        """
        if self._is_over():
            raise TrainingPaused

    def _is_over(self) -> bool:
        return self._stop.is_set() or (self._ends is not None and time.monotonic() >= self._ends)

    def fit(self, stage: Stage) -> None:
        """Train `stage` from where it stands to its end.

        Raises:
            TrainingPaused: the limit is reached, or somebody asked to stop; the checkpoint is written.
            ModelLoadError: the checkpoint is damaged or of another recipe.
        """
        path = self.work / f"{stage.name}.safetensors"
        modules, optimizers = stage.modules(), stage.optimizers()
        at = checkpoint.load(path, modules, optimizers, self.device) or Position(0, 0.0)
        if at.index:
            self.report(f"{stage.name}: goes on at step {at.index} of {stage.steps}")
        first, began = at.index, time.monotonic()
        saved = shown = began
        for index in range(first, stage.steps):
            if index == first or index % ALIGN_EVERY == 0:
                self.group.align(modules.values())
            if self._is_over():
                checkpoint.save(path, modules, optimizers, Position(index, at.seconds + time.monotonic() - began))
                self.report(f"{stage.name}: paused at step {index} of {stage.steps}")
                raise TrainingPaused
            self.reseed(stage.name, index)
            values = stage.step(index)
            now = time.monotonic()
            if now - shown >= PROGRESS_S or index + 1 == stage.steps:
                self.report(_progress(stage, index + 1, values, (now - began) / (index + 1 - first)))
                shown = now
            if now - saved >= CHECKPOINT_S and self.group.first:
                checkpoint.save(path, modules, optimizers, Position(index + 1, at.seconds + now - began))
                saved = now
        spent = at.seconds + time.monotonic() - began
        if first < stage.steps:
            self.group.align(modules.values())
            if self.group.first:
                checkpoint.save(path, modules, optimizers, Position(stage.steps, spent))
        self.seconds += spent

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """While this is open, SIGINT and SIGTERM stop in order after the step that is being done."""

        def ask(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _progress(stage: Stage, done: int, values: dict[str, float], seconds_a_step: float) -> str:
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    left = seconds_a_step * (stage.steps - done)
    when = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
    return f"{stage.name}: step {done} of {stage.steps} ({100 * done // stage.steps} %)  {shown}  about {when} left"
