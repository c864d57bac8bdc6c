"""`python -m tessera_kernels.bench --check`: is every op right on this GPU, how fast, and how far from its limit.

First every op's results are compared with its reference, in several processes because most of the time goes into
compiling; then every realistic shape is timed alone, beside what else computes it. What is known of an op is kept in a
file, so that the same command goes on where it was stopped; a file made by other code is made again. `--interpret`
checks tiny shapes in Triton's interpreter, without a GPU. Does not know ops: their folders' `bench.py` do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch

from tessera_kernels import tuning
from tessera_kernels.bench import report as bench_report
from tessera_kernels.bench.cases import measured_ops
from tessera_kernels.bench.measure import peaks
from tessera_kernels.bench.results import BenchResults, Rows
from tessera_kernels.bench.run import RunMode, checks_of, times_of
from tessera_kernels.dispatch import HAS_TRITON
from tessera_kernels.roofline import Peaks

PACKAGE = Path(__file__).parents[1]
RIGHT, WRONG, IMPOSSIBLE, UNFINISHED = 0, 1, 2, 3
"""What the command returns."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    unknown = set(options.ops) - set(measured_ops())
    if unknown:
        return _refused(f"There is no op {', '.join(sorted(unknown))}; there are {', '.join(measured_ops())}.")
    if not HAS_TRITON:
        return _refused("Triton is not installed: pip install triton")
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        return _refused("There is no GPU here. `--check --interpret` checks every op on tiny shapes without one.")
    name = "interpreter" if options.interpret else torch.cuda.get_device_name()
    out = options.out or (None if options.interpret else _results())
    folder = out and out / tuning.slug(name)
    found = BenchResults(options.ops or measured_ops(), folder, again=options.again)
    way = RunMode(options.interpret, time.monotonic() + options.seconds)
    missing = []
    if options.check:
        _check_all(found, way, options.jobs)
        missing += found.without("checks")
    if not options.interpret:
        limits = _time_all(found, way)
        missing += found.without("times")
        if folder is not None:
            _write_report(found, limits, name, folder)
    for row in found.faults():
        _say(f"WRONG {row['name']}: {row['fault']}")
    if missing:
        _say(f"stopped after {options.seconds:.0f} s before {', '.join(dict.fromkeys(missing))}: run it again")
    return WRONG if found.faults() else UNFINISHED if missing else RIGHT


def _check_all(found: BenchResults, way: RunMode, jobs: int) -> None:
    """Fill in `checks` of every op that has none yet."""
    waiting = found.without("checks")
    if way.interpret:
        for op in waiting:
            _tell_checks(op, found.add(op, "checks", checks_of(op, way)))
        return
    # A process for each op: one that a kernel has spoiled spoils no other.
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {op: pool.submit(checks_of, op, way) for op in waiting}
        for op, future in futures.items():
            try:
                rows = future.result()
            except BrokenProcessPool as error:
                rows = [{"name": op, "ok": False, "fault": f"the process that checked it died: {error}"}]
            _tell_checks(op, found.add(op, "checks", rows))


def _tell_checks(op: str, rows: Rows | None) -> None:
    if rows is not None:
        _say(f"{op}: {sum(row['ok'] for row in rows)} of {len(rows)} right")


def _time_all(found: BenchResults, way: RunMode) -> Peaks:
    """Fill in `times` of every op that has none yet; returns the device's peaks."""
    pool = _timing_pool()
    try:
        _say("measuring the device's peaks")
        limits: Peaks = pool.submit(peaks).result()
        for op in found.without("times"):
            try:
                rows = pool.submit(times_of, op, way, limits).result()
            except BrokenProcessPool as error:
                rows = [{"name": op, "goal": None, "fault": f"the process that timed it died: {error}"}]
            found.add(op, "times", rows)
            if rows is None:
                break
            if any("fault" in row for row in rows):
                pool.shutdown(cancel_futures=True)
                pool = _timing_pool()
    finally:
        pool.shutdown(cancel_futures=True)
    return limits


def _timing_pool() -> Executor:
    """One process, because what is timed must be alone; another takes its place if a kernel spoils it."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def _write_report(found: BenchResults, limits: Peaks, name: str, folder: Path) -> None:
    """One file for machines and one for people, beside the folder of the ops' own."""
    device = {"name": name, "torch": torch.__version__, "triton": tuning.triton_version(), "peaks": asdict(limits)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    report = {"device": device, "ops": found.ops()}
    folder.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = folder.with_suffix(".md")
    table.write_text(bench_report.markdown(device, found.ops()), encoding="utf-8")
    _say(f"written: {table}")


def _results() -> Path:
    """In a checkout beside the package; elsewhere where the command is run."""
    return PACKAGE.parent / "results" if PACKAGE.parent.name == "kernels" else Path("results")


def _refused(why: str) -> int:
    _say(why)
    return IMPOSSIBLE


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare every op with its reference first")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes in Triton's interpreter, without a GPU")
    parser.add_argument("--ops", type=lambda text: text.split(","), default=[], help="only these, by comma")
    parser.add_argument("--again", action="store_true", help="do not go on from what an earlier run has found")
    parser.add_argument("--out", type=Path, help="where results are written (kernels/results)")
    parser.add_argument("--seconds", type=float, default=450, help="start nothing new after this many (450)")
    jobs = min(8, max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes that check ({jobs})")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
