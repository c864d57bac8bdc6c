"""A process of rank 1 or higher of a data-parallel training: `python -m tessera.starters.training_worker`.

The process of rank 0 starts it. It computes its share of each step, writes nothing that stays, and ends when rank 0
ends. Knows no starter.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tessera.processes import die_with_parent

END_S = 10.0
"""Seconds that training workers have to end by themselves after the training has ended."""


@contextmanager
def training_workers(name: str, *, work: Path, seed: int, count: int, rendezvous: Path) -> Iterator[None]:
    """Run the processes of rank 1 to `count` - 1 of a training while this context is open."""
    with ExitStack() as open_:
        for rank in range(1, count):
            given = ["--work", work, "--seed", seed, "--rank", rank, "--count", count, "--rendezvous", rendezvous]
            command = [sys.executable, "-m", __spec__.name, name, *(str(one) for one in given)]
            process = subprocess.Popen(command, preexec_fn=die_with_parent())  # noqa: PLW1509 - started from the main thread
            open_.callback(_end, process)
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Compute this rank's share of each step until the training ends."""
    parser = argparse.ArgumentParser(prog="python -m tessera.starters.training_worker", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True)
    given = parser.parse_args()
    # Ctrl-C reaches all processes of a terminal: rank 0 decides, and this process ends when rank 0 has left.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from tessera.device.hardware import choose  # noqa: PLC0415 - torch: only now
    from tessera.starters import recipe as recipes  # noqa: PLC0415
    from tessera.starters.data_parallel import DataParallelGroup, PeerLostError  # noqa: PLC0415
    from tessera.starters.run import Run  # noqa: PLC0415

    place = choose("cpu", threads=1).place
    group = DataParallelGroup(given.rank, given.count)
    train = recipes.find(given.name).train
    assert train is not None, "only recipes that are trained have training workers"
    with tempfile.TemporaryDirectory(prefix="tessera-training-worker-") as output:
        run = Run(
            seed=given.seed,
            device=place,
            work=given.work,
            output=Path(output),
            report=lambda _: None,
            group=group,
        )
        group.join(given.rendezvous)
        try:
            train(run)
        except PeerLostError:
            return 1  # rank 0 has paused or was killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
