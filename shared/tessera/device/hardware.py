"""The only place that asks which hardware exists.

Knows neither models nor settings: the caller passes what its settings ask for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tessera.errors import StartError

BACKGROUND_NICENESS = 10
"""Niceness of workers of long jobs, on the scale of `setpriority`."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Files of the control group (cgroup v2) of this process's container."""


@dataclass(frozen=True)
class Device:
    """A device to run on.

    Attributes:
        place: the device as torch names it.
        dtype: in which models compute there.
        name: for people, with the number of threads of a CPU.
    """

    place: torch.device
    dtype: torch.dtype
    name: str


def available_cores() -> int:
    """Number of cores that this process may use."""
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
    """Bytes of memory that are free now: a GPU's, or the host's within the limit of the container's control group."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + cached)
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = _group_file("memory.max").strip(), _group_file("memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return free
    # Cached files (of weights, for example) count as used, but are evicted when memory is needed.
    counts = dict(line.split() for line in _group_file("memory.stat").splitlines())
    files = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return max(0, min(free, int(limit) - int(used) + files))


def _group_file(name: str) -> str:
    path = CONTROL_GROUP / name
    return path.read_text(encoding="ascii") if path.is_file() else ""


def yield_to_interactive() -> None:
    """Lower the CPU priority of this process, so that workers of long jobs give way to engines that answer requests.

    Affects the calling thread and threads that it starts later, so it is called before the device is used.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) < BACKGROUND_NICENESS:  # raising the priority again would need a privilege
        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICENESS)
