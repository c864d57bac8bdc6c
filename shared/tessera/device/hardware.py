"""The only place that asks what hardware there is.

Does not know models; a service tells it what its settings ask for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tessera.errors import StartError

BACKGROUND_NICENESS = 10
CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Device:
    """A device to run on, and how."""

    place: torch.device
    dtype: torch.dtype
    name: str


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def choose(
    device: Literal["auto", "cpu", "cuda"],
    *,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    threads: int = 0,
) -> Device:
    """The device that the settings ask for; sets the number of CPU threads of this process.

    Args:
        device: `auto` takes CUDA when there is any.
        dtype: `auto` is bfloat16 on CUDA and float32 on a CPU.
        threads: 0 takes all cores.

    Raises:
        StartError: CUDA is asked for and there is none.
    """
    torch.set_num_threads(threads or available_cores())
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise StartError("device is `cuda`, but PyTorch sees no CUDA device; set it to `auto` or `cpu`")
    chosen = torch.device("cuda" if has_cuda and device != "cpu" else "cpu")
    kind = getattr(torch, dtype) if dtype != "auto" else torch.bfloat16 if chosen.type == "cuda" else torch.float32
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"cpu ({torch.get_num_threads()} threads)"
    return Device(chosen, kind, name)


def free_bytes(device: torch.device) -> int:
    """Memory that is free now: a GPU's, or the host's within the limit of its control group (a container's)."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + cached)
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = _group_file("memory.max").strip(), _group_file("memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return free
    # Files that were read (weights, for one) count as used, and are given back when memory is wanted.
    counts = dict(line.split() for line in _group_file("memory.stat").splitlines())
    files = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return max(0, min(free, int(limit) - int(used) + files))


def _group_file(name: str) -> str:
    path = CONTROL_GROUP / name
    return path.read_text(encoding="ascii") if path.is_file() else ""


def yield_to_interactive() -> None:
    """Make this process give way on a CPU to the engines that somebody waits for: for workers of long jobs.

    Affects the calling thread and those it starts later, so it is called before the device is used.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) < BACKGROUND_NICENESS:  # never back up: that needs a privilege
        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICENESS)
