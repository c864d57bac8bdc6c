"""`python -m tessera_video.rank_worker`: the process of a worker's further device, started and ended by the worker.

It loads the model's transformers and computes its part of every pass. Knows no jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tessera.device.hardware import Device, choose
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.loading.lora_files import load_adapters
from tessera.diffusion.parallel.context import divide
from tessera.diffusion.parallel.ranks import Ranks, follow, lead
from tessera.errors import ModelLoadError, StartError, TesseraError
from tessera.hub.adapters import adapter_files
from tessera.hub.store import ensure
from tessera.processes import die_with_parent
from tessera.settings.load import load, stay_on_this_machine
from tessera.settings.tree import Settings
from tessera.telemetry import configure_logging
from tessera_video.loading import load_model

logger = logging.getLogger(__name__)

END_S = 5.0
"""Seconds that the rank workers have to end by themselves after the worker has ended; then they are killed."""


def device_of(settings: Settings, rank: int) -> Device:
    """Return the device of a rank: the GPU with the rank's number, or the CPU.

    Raises:
        StartError: there are fewer GPUs than `video.devices`.
    """
    video = settings.video
    device = choose(video.device, threads=video.threads)
    if device.place.type == "cuda":
        if torch.cuda.device_count() < video.devices:
            raise StartError(f"`video.devices` is {video.devices}, but PyTorch sees {torch.cuda.device_count()}")
        torch.cuda.set_device(rank)
    return device


@contextlib.contextmanager
def rank_workers(count: int, on_lost: Callable[[], None]) -> Iterator[Path]:
    """Run the processes of ranks 1 to `count` - 1 while the context is open. Yields the file for their rendezvous.

    Args:
        count: number of devices, the worker's own included.
        on_lost: called in a thread when a process has ended too early.
    """
    over = threading.Event()

    def watch(process: subprocess.Popen[bytes], rank: int) -> None:
        status = process.wait()
        if not over.is_set():
            logger.error("the process of device %d has ended with status %d", rank, status)
            on_lost()

    stay_on_this_machine()
    with tempfile.TemporaryDirectory(prefix="tessera-ranks-") as folder:
        rendezvous = Path(folder) / "rendezvous"
        processes = []
        for rank in range(1, count):
            command = [sys.executable, "-m", __spec__.name, "--rank", str(rank), "--meeting", str(rendezvous)]
            process = subprocess.Popen(command, preexec_fn=die_with_parent())  # noqa: PLW1509 - from the main thread
            processes.append(process)
            threading.Thread(target=watch, args=(process, rank), daemon=True).start()
        try:
            yield rendezvous
        finally:
            over.set()
            for process in processes:
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def share_passes(model: FamilyModel, settings: Settings, rendezvous: Path, device: Device) -> Callable[[], None]:
    """Let the rank workers compute their parts of a worker's passes. Returns a function that ends them.

    Raises:
        ModelLoadError: the model cannot be divided.
    """
    ranks = _divided(model, 0, settings.video.devices, rendezvous, device)
    logger.info("each pass is shared by %d devices", ranks.count)
    return lead(model, ranks)


def _divided(model: FamilyModel, rank: int, count: int, rendezvous: Path, device: Device) -> Ranks:
    ranks = Ranks(rank, count, rendezvous, device.place)
    for expert in model.expert_components():
        divide(expert, model.block_list, rank=rank, count=count, place=device.place)
    model.shared_by = count
    return ranks


def main() -> int:
    """Compute this rank's part of every pass until the worker ends. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tessera_video.rank_worker", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--meeting", type=Path, required=True)
    given = parser.parse_args()
    # The worker decides when this ends; what ends the worker ends this, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = load()
    configure_logging(f"video-device-{given.rank}", level=settings.suite.log_level, form=settings.suite.log_format)
    stay_on_this_machine()
    try:
        device = device_of(settings, given.rank)
        found = ensure(settings.video.model, settings.models_dir, logger.info)
        model = load_model(found.path, device, settings.video, passes_alone=True)
        if not isinstance(model, FamilyModel):
            raise ModelLoadError(f"{found.card.id} steps itself, so its passes cannot be shared")
        load_adapters(model, adapter_files(settings.video.adapters))
        follow(model, _divided(model, given.rank, settings.video.devices, given.meeting, device))
    except TesseraError as error:
        logger.error("device %d cannot take part: %s", given.rank, error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
