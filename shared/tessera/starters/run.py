"""Runs the stages of a recipe: resumes each from its last checkpoint, reports progress, obeys a time limit and Ctrl-C.

The seed of a step follows from the run's seed, the stage and the step's number alone, so that an interrupted run ends
with the same weights as an uninterrupted one on the same machine. Knows nothing about what is trained.
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
"""Seconds between two checkpoints of a stage."""
PROGRESS_S = 15.0
"""Seconds between two lines about the progress of a stage."""


class Stage(Protocol):
    """One optimization of a recipe.

    `step(index)` is one update. Its data and its learning rate follow from the run's seed and `index` alone; torch's
    own generator is seeded before each step. It returns the values to show as progress.
    """

    name: str
    steps: int

    def modules(self) -> dict[str, nn.Module]:
        """The modules that are trained, by name; a checkpoint holds them."""
        ...

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers of these modules, by name; a checkpoint holds them."""
        ...

    def step(self, index: int) -> dict[str, float]:
        """Make update number `index`. Returns values to show as progress."""
        ...


class TrainingPaused(Exception):  # noqa: N818 - no error: the run resumes later
    """The time limit was reached or a signal asked to stop; the checkpoint holds everything."""


class Run:
    """One run of a recipe.

    Args:
        seed: seed of everything random.
        device: device to train on.
        work: folder for checkpoints and for what a recipe keeps between runs.
        output: empty directory that the recipe fills at its end.
        report: called with one line at a time.
        minutes: minutes of training after which the run pauses; None trains to the end.
        group: this process' rank among the processes that train together; None trains alone.
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
        """Seconds that the finished stages took, in all runs."""
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes
        self._stop = threading.Event()
        work.mkdir(parents=True, exist_ok=True)

    def seed_of(self, *labels: str | int) -> int:
        """A seed for a random generator, which depends on the run's seed and the labels alone."""
        text = "/".join(str(label) for label in (self.seed, *labels))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def reseed(self, *labels: str | int) -> None:
        """Seed torch's generator. Call this before modules are made, so that their initial weights are reproducible."""
        torch.manual_seed(self.seed_of(*labels))

    def check_time(self) -> None:
        """Check the time limit and signals during long work outside of stages.

        Raises:
            TrainingPaused: the limit is reached, or a signal asked to stop.
        """
        if self._is_over():
            raise TrainingPaused

    def _is_over(self) -> bool:
        return self._stop.is_set() or (self._ends is not None and time.monotonic() >= self._ends)

    def fit(self, stage: Stage) -> None:
        """Train `stage` from its last checkpoint to its end.

        Raises:
            TrainingPaused: the limit is reached, or a signal asked to stop; the checkpoint is written.
            ModelLoadError: the checkpoint is damaged or belongs to another recipe.
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
        """A context in which SIGINT and SIGTERM pause the training after the current step."""

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
