"""`python -m tessera_kernels.tune [--ops a,b]`: time what launchers may choose from, and write what was fastest.

Every op that leaves something to choose says so in its `bench.py` (`choices`). The file is `tuned/<device>.json`, which
`tuning.lookup` reads when a kernel is launched; `bench --check` proves afterwards that results are right with it. Does
not know what a configuration means.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import torch

from tessera_kernels import tuning
from tessera_kernels.cases import Choice, Config, choices_of, measured_ops
from tessera_kernels.dispatch import HAS_TRITON
from tessera_kernels.measure import timed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tessera_kernels.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ops", type=lambda text: text.split(","), default=[], help="only these, by comma")
    options = parser.parse_args(arguments)
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
        chosen = {}
        for choice in choices_of(op):
            found = fastest(choice, torch.device("cuda"))
            if found is not None:
                chosen[choice.dtype, choice.bucket] = found[0]
                _say(f"{op} / {choice.dtype} / {choice.bucket}: {dict(found[0])}, {found[1] * 1e6:,.1f} us")
        if chosen:
            _say(f"written: {tuning.write(device, op, chosen)}")
    return 0


def fastest(choice: Choice, device: torch.device) -> tuple[Config, float] | None:
    """The configuration with the shortest median time, and its seconds; None if none of them runs."""
    torch.manual_seed(0)
    inputs = choice.make(device)
    best: tuple[Config, float] | None = None
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


if __name__ == "__main__":
    raise SystemExit(main())
