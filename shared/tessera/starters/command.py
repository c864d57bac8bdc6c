"""Runs `tessera starters train` and `tessera starters evaluate`. Knows no starter."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tessera.errors import StartError
from tessera.hub import store
from tessera.hub.cards import read_card, verify, write_card
from tessera.starters import recipe as recipes
from tessera.starters.recipe import Evaluation, Recipe
from tessera.wire.models import Measure

SEED = 20261121
"""Seed of a training that gets no other."""
DeviceKind = Literal["auto", "cpu", "cuda"]
UNFINISHED = 3
"""Exit status of a training that was paused."""
RENDEZVOUS = ".rendezvous"
MOST_PROCESSES = 4
"""Processes that share a step at most; more are not worth their memory."""


def train(
    name: str,
    *,
    work: Path,
    output: Path,
    device: DeviceKind,
    threads: int,
    seed: int,
    minutes: float | None,
    fresh: bool,
    processes: int = 0,
    report: Callable[[str], None],
) -> int:
    """Train a starter or resume its training, judge it, and write it to `output`.

    Args:
        name: name of the starter.
        work: folder of its checkpoints.
        output: directory for the model.
        device: `auto` takes CUDA where there is a GPU.
        threads: CPU threads; 0 takes all cores.
        seed: seed of everything random.
        minutes: minutes after which the training pauses; None trains to the end.
        fresh: whether to delete the checkpoints first.
        processes: processes that share each step, with one thread each; 0 takes one a core where the recipe can.
        report: called with one line at a time.

    Returns:
        Exit status: 0 when done, 1 when a measure misses its bar, `UNFINISHED` when the training was paused.
    """
    recipe = recipes.find(name)
    if recipe.train is None:
        report(f"{name} is fetched, not trained: `tessera models pull {name}`")
        return 1
    recipes.require_judges(recipe)
    from tessera.device.hardware import choose  # noqa: PLC0415 - imports torch
    from tessera.starters.data_parallel import DataParallelGroup  # noqa: PLC0415
    from tessera.starters.run import Run, TrainingPaused  # noqa: PLC0415
    from tessera.starters.training_worker import training_workers  # noqa: PLC0415

    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    place = choose(device, threads=threads).place
    count = _processes(recipe, processes, on_cpu=place.type == "cpu")
    if count > 1:
        choose("cpu", threads=1)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.part-", dir=output.parent))
    try:
        group = DataParallelGroup(0, count)
        run = Run(seed=seed, device=place, work=work, output=partial, report=report, minutes=minutes, group=group)
        rendezvous = partial / RENDEZVOUS
        with training_workers(name, work=work, seed=seed, count=count, rendezvous=rendezvous):
            try:
                if count > 1:
                    group.join(rendezvous)
                with run.stoppable():
                    card = recipe.train(run)
            except TrainingPaused:
                report(f"paused; the same command goes on (checkpoints are in {work})")
                return UNFINISHED
            finally:
                group.leave()
                rendezvous.unlink(missing_ok=True)
        choose(device, threads=threads)
        report(f"trained in {run.seconds / 60:.0f} minutes; now it is judged")
        write_card(partial, msgspec.structs.replace(card, seed=seed))
        measures = recipe.evaluate(partial, Evaluation(seed=seed + 1, samples=None, device=device, report=report))
        card = write_card(partial, msgspec.structs.replace(card, seed=seed, quality=measures))
        store.replace(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    report(table({name: measures}))
    report(f"{name} is in {output}")
    return 0 if all(measure.passed for measure in measures) else 1


def _processes(recipe: Recipe, asked: int, *, on_cpu: bool) -> int:
    """The number of processes that share each step.

    Raises:
        StartError: several processes are requested where steps cannot be shared.
    """
    able = recipe.data_parallel and on_cpu
    if asked > 1 and not able:
        raise StartError(f"the steps of {recipe.name} are not shared by processes here; leave `--processes` out")
    return asked or (min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if able else 1)


def evaluate(
    names: Sequence[str],
    *,
    models: Path,
    directory: Path | None,
    device: DeviceKind,
    threads: int,
    seed: int | None,
    samples: int | None,
    report: Callable[[str], None],
) -> int:
    """Judge starters on fresh held-out samples.

    Args:
        names: names of the starters.
        models: directory of models; a starter that is missing there is made.
        directory: model directory to judge instead of the one in `models`, for a single name.
        device: `auto` takes CUDA where there is a GPU.
        threads: CPU threads; 0 takes all cores.
        seed: seed of the samples; None draws one and reports it.
        samples: samples of each kind; None takes as many as the card's measures were taken with.
        report: called with one line at a time.

    Returns:
        Exit status: 0, or 1 when a measure misses its bar.
    """
    chosen: list[Recipe] = [recipes.find(name) for name in names]
    for recipe in chosen:
        recipes.require_judges(recipe)
    from tessera.device.hardware import choose  # noqa: PLC0415 - imports torch

    choose(device, threads=threads)
    seed = secrets.randbelow(2**31) if seed is None else seed
    found: dict[str, list[Measure]] = {}
    for recipe in chosen:
        where = directory or store.ensure(recipe.name, models, report).path
        verify(where, read_card(where))
        report(f"judging {recipe.name} in {where} with seed {seed}")
        found[recipe.name] = recipe.evaluate(where, Evaluation(seed, samples, device, report))
    report(table(found))
    below = sum(not measure.passed for measures in found.values() for measure in measures)
    if below:
        report(f"{below} of the measures are below their bar")
    return 1 if below else 0


def table(found: dict[str, list[Measure]]) -> str:
    """The measures of all starters as a table of text."""
    head = ("starter", "measure", "value", "bar", "samples", "")
    rows = [head]
    for name, measures in found.items():
        for measure in measures:
            bar = f"≥ {measure.at_least:g}" if measure.at_least is not None else ""
            bar = f"≤ {measure.at_most:g}" if measure.at_most is not None else bar
            verdict = ("ok" if measure.passed else "BELOW") if bar else ""
            value = f"{measure.value:.4g} {measure.unit}".strip()
            rows.append((name, measure.name, value, bar, str(measure.samples or ""), verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
