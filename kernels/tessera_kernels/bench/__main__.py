"""`python -m tessera_kernels.bench --check`: is every op right on this GPU, how fast, and how far from its limit.

First the results of every op are compared with its reference, in several processes because most of the time goes into
compiling. Then every realistic shape is timed alone, beside peers that compute the same. The results of each op are
written to a file, so that the same command continues where it was stopped; results of other code are discarded.
`--interpret` checks tiny shapes in Triton's interpreter, without a GPU. Knows no ops: the `bench.py` of each op
describes its cases.
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
"""Exit statuses of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    unknown = set(options.ops) - set(measured_ops())
    if unknown:
        return _refuse(f"There is no op {', '.join(sorted(unknown))}; there are {', '.join(measured_ops())}.")
    if not HAS_TRITON:
        return _refuse("Triton is not installed: pip install triton")
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        return _refuse("There is no GPU here. `--check --interpret` checks every op on tiny shapes without one.")
    name = "interpreter" if options.interpret else torch.cuda.get_device_name()
    out = options.out or (None if options.interpret else _results())
    folder = out and out / tuning.slug(name)
    results = BenchResults(options.ops or measured_ops(), folder, again=options.again)
    mode = RunMode(options.interpret, time.monotonic() + options.seconds)
    missing = []
    if options.check:
        _check_all(results, mode, options.jobs)
        missing += results.without("checks")
    if not options.interpret:
        limits = _time_all(results, mode)
        missing += results.without("times")
        if folder is not None:
            _write_report(results, limits, name, folder)
    for row in results.faults():
        _print_line(f"WRONG {row['name']}: {row['fault']}")
    if missing:
        _print_line(f"stopped after {options.seconds:.0f} s before {', '.join(dict.fromkeys(missing))}: run it again")
    return WRONG if results.faults() else UNFINISHED if missing else RIGHT


def _check_all(results: BenchResults, mode: RunMode, jobs: int) -> None:
    """Check every op that has no `checks` yet."""
    waiting = results.without("checks")
    if mode.interpret:
        for op in waiting:
            _report_checks(op, results.add(op, "checks", checks_of(op, mode)))
        return
    # A process for each op, because a kernel may break the CUDA context of its process.
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {op: pool.submit(checks_of, op, mode) for op in waiting}
        for op, future in futures.items():
            try:
                rows = future.result()
            except BrokenProcessPool as error:
                rows = [{"name": op, "ok": False, "fault": f"the process that checked it died: {error}"}]
            _report_checks(op, results.add(op, "checks", rows))


def _report_checks(op: str, rows: Rows | None) -> None:
    if rows is not None:
        _print_line(f"{op}: {sum(row['ok'] for row in rows)} of {len(rows)} right")


def _time_all(results: BenchResults, mode: RunMode) -> Peaks:
    """Time every op that has no `times` yet; returns the peaks of the device."""
    pool = _timing_pool()
    try:
        _print_line("measuring the device's peaks")
        limits: Peaks = pool.submit(peaks).result()
        for op in results.without("times"):
            try:
                rows = pool.submit(times_of, op, mode, limits).result()
            except BrokenProcessPool as error:
                rows = [{"name": op, "goal": None, "fault": f"the process that timed it died: {error}"}]
            results.add(op, "times", rows)
            if rows is None:
                break
            if any("fault" in row for row in rows):
                pool.shutdown(cancel_futures=True)
                pool = _timing_pool()
    finally:
        pool.shutdown(cancel_futures=True)
    return limits


def _timing_pool() -> Executor:
    """A pool of one process, because a timed run must be alone; a new pool replaces it if a kernel breaks it."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def _write_report(results: BenchResults, limits: Peaks, name: str, folder: Path) -> None:
    """Write a JSON and a Markdown file for the device, beside the folder with the files of its ops."""
    device = {"name": name, "torch": torch.__version__, "triton": tuning.triton_version(), "peaks": asdict(limits)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    report = {"device": device, "ops": results.ops()}
    folder.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = folder.with_suffix(".md")
    table.write_text(bench_report.markdown(device, results.ops()), encoding="utf-8")
    _print_line(f"written: {table}")


def _results() -> Path:
    """The folder `results` beside the package in a checkout; in the current directory otherwise."""
    return PACKAGE.parent / "results" if PACKAGE.parent.name == "kernels" else Path("results")


def _refuse(why: str) -> int:
    _print_line(why)
    return IMPOSSIBLE


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare every op with its reference first")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes in Triton's interpreter, without a GPU")
    parser.add_argument(
        "--ops", type=lambda text: text.split(","), default=[], help="only these ops, separated by commas"
    )
    parser.add_argument("--again", action="store_true", help="discard the results of earlier runs")
    parser.add_argument("--out", type=Path, help="where results are written (kernels/results)")
    parser.add_argument("--seconds", type=float, default=450, help="start nothing new after this many (450)")
    jobs = min(8, max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes that check ({jobs})")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
