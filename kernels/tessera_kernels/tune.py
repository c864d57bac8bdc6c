"""`python -m tessera_kernels.tune [--ops a,b]`: time what launchers may choose from, and write what was fastest.

Every op that leaves something to choose says so in its `bench.py` (`choices`). The file is `tuned/<device>.json`, which
`tuning.lookup` reads when a kernel is launched; `bench --check` proves afterwards that results are right with it. An
op's configurations are first compiled by several processes, then timed one after the other; what the file has already
is not timed again, so the same command goes on where it was stopped. Does not know what a configuration means.
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
        return _refused(f"There is no op {', '.join(sorted(unknown))}; there are {', '.join(measured_ops())}.")
    if not HAS_TRITON:
        return _refused("Triton is not installed: pip install triton")
    if not torch.cuda.is_available():
        return _refused(
            "There is no GPU here, so there is nothing to tune for: run this on the GPU that is to be used."
        )
    device = torch.cuda.get_device_name()
    for op in ops:
        _tune(op, device, options.jobs, again=options.again)
    _say(f"tuned: {tuning.path_of(device)}")
    return 0


def _tune(op: str, device: str, jobs: int, *, again: bool) -> None:
    choices = choices_of(op)
    waiting = [
        index
        for index, choice in enumerate(choices)
        if again or tuning.lookup(op, device, choice.dtype, choice.bucket) is None
    ]
    if len(waiting) > 1 and jobs > 1:
        _say(f"{op}: compiling what {len(waiting)} of {len(choices)} buckets may be launched with")
        _compile(op, waiting, jobs)
    for index in waiting:
        choice = choices[index]
        found = fastest(choice, torch.device("cuda"))
        if found is not None:
            tuning.write(device, op, {(choice.dtype, choice.bucket): found[0]})
            _say(f"{op} / {choice.dtype} / {choice.bucket}: {dict(found[0])}, {found[1] * 1e6:,.1f} us")


def _compile(op: str, waiting: Sequence[int], jobs: int) -> None:
    """Fill Triton's cache, in new processes: a forked one cannot use CUDA."""
    with ProcessPoolExecutor(min(jobs, len(waiting)), get_context("spawn"), max_tasks_per_child=8) as pool:
        for future in [pool.submit(run_all, op, index) for index in waiting]:
            try:
                future.result()
            except (RuntimeError, BrokenProcessPool) as error:
                _say(f"  {op}: a process that compiled died: {str(error)[:200]}")


def run_all(op: str, index: int) -> None:
    """Run every configuration of a choice once, so that all are compiled."""
    choice = choices_of(op)[index]
    inputs = choice.make(torch.device("cuda"))
    for config in choice.configs:
        try:
            choice.run(config, *inputs)
            torch.cuda.synchronize()
        except Exception:  # noqa: BLE001, S112 - it is run again, and told, when it is timed
            continue


def fastest(choice: TuningChoice, device: torch.device) -> tuple[LaunchConfig, float] | None:
    """The configuration with the shortest median time, and its seconds; None if none of them runs."""
    torch.manual_seed(0)
    inputs = choice.make(device)
    best: tuple[LaunchConfig, float] | None = None
    for config in choice.configs:
        try:
            seconds = timed(partial(choice.run, config, *inputs)).seconds
        except Exception as error:  # noqa: BLE001 - too much shared memory, too many registers: the next one
            _say(f"  {dict(config)} does not run: {type(error).__name__}: {str(error)[:200]}")
            continue
        if best is None or seconds < best[1]:
            best = (config, seconds)
    return best


def _refused(why: str) -> int:
    _say(why)
    return 2


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ops", type=lambda text: text.split(","), default=[], help="only these, by comma")
    parser.add_argument("--again", action="store_true", help="time also what the device's file has already")
    jobs = min(16, os.cpu_count() or 2)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes that compile ({jobs})")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
