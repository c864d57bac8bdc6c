"""`python -m tessera_kernels.tune [--ops a,b]`: time the launch configurations of ops, and write the fastest ones.

An op lists its configurations in `choices()` of its `bench.py`. The result is `tuned/<device>.json`, which
`tuning.lookup` reads when a kernel is launched; `bench --check` proves afterwards that results are right with it. The
configurations of an op are first compiled by several processes, then timed one after the other. Buckets that the file
has already are not timed again, so the same command continues where it was stopped. Knows nothing of what a
configuration means.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context

import torch

from tessera_kernels import tuning
from tessera_kernels.bench.cases import LaunchConfig, TuningChoice, choices_of, measured_ops
from tessera_kernels.bench.measure import timed
from tessera_kernels.dispatch import HAS_TRITON


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    ops = options.ops or measured_ops()
    unknown = set(ops) - set(measured_ops())
    if unknown:
        return _refuse(f"There is no op {', '.join(sorted(unknown))}; there are {', '.join(measured_ops())}.")
    if not HAS_TRITON:
        return _refuse("Triton is not installed: pip install triton")
    if not torch.cuda.is_available():
        return _refuse("There is no GPU here, so there is nothing to tune for: run this on the GPU that is to be used.")
    device = torch.cuda.get_device_name()
    for op in ops:
        _tune(op, device, options.jobs, again=options.again)
    _print_line(f"tuned: {tuning.path_of(device)}")
    return 0


def _tune(op: str, device: str, jobs: int, *, again: bool) -> None:
    choices = choices_of(op)
    waiting = [
        index
        for index, choice in enumerate(choices)
        if again or tuning.lookup(op, device, choice.dtype, choice.bucket) is None
    ]
    if len(waiting) > 1 and jobs > 1:
        _print_line(f"{op}: compiling what {len(waiting)} of {len(choices)} buckets may be launched with")
        _compile(op, waiting, jobs)
    for index in waiting:
        choice = choices[index]
        best = fastest(choice, torch.device("cuda"))
        if best is not None:
            tuning.write(device, op, {(choice.dtype, choice.bucket): best[0]})
            _print_line(f"{op} / {choice.dtype} / {choice.bucket}: {dict(best[0])}, {best[1] * 1e6:,.1f} us")


def _compile(op: str, waiting: Sequence[int], jobs: int) -> None:
    """Fill Triton's cache in new processes, because a forked process cannot use CUDA."""
    with ProcessPoolExecutor(min(jobs, len(waiting)), get_context("spawn"), max_tasks_per_child=8) as pool:
        for future in [pool.submit(run_all, op, index) for index in waiting]:
            try:
                future.result()
            except (RuntimeError, BrokenProcessPool) as error:
                _print_line(f"  {op}: a process that compiled died: {str(error)[:200]}")


def run_all(op: str, index: int) -> None:
    """Run every configuration of one choice of an op once, so that all of them are compiled."""
    choice = choices_of(op)[index]
    inputs = choice.make(torch.device("cuda"))
    for config in choice.configs:
        try:
            choice.run(config, *inputs)
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001, S112 - `fastest` runs it again and reports the error
            continue


def fastest(choice: TuningChoice, device: torch.device) -> tuple[LaunchConfig, float] | None:
    """The configuration with the shortest median time, with its seconds; None if no configuration runs."""
    torch.manual_seed(0)
    inputs = choice.make(device)
    best: tuple[LaunchConfig, float] | None = None
    for config in choice.configs:
        try:
            seconds = timed(partial(choice.run, config, *inputs)).seconds
        except Exception as error:  # noqa: BLE001 - too much shared memory, too many registers: the next one
            _print_line(f"  {dict(config)} does not run: {type(error).__name__}: {str(error)[:200]}")
            continue
        if best is None or seconds < best[1]:
            best = (config, seconds)
    return best


def _refuse(why: str) -> int:
    _print_line(why)
    return 2


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--ops", type=lambda text: text.split(","), default=[], help="only these ops, separated by commas"
    )
    parser.add_argument("--again", action="store_true", help="time also buckets that the device's file has already")
    jobs = min(16, os.cpu_count() or 2)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes that compile ({jobs})")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
