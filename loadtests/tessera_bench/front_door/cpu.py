"""Processor time of processes, from `/proc`. Knows no benchmark."""

from __future__ import annotations

import os
from pathlib import Path


def seconds(pid: int) -> float:
    """Processor time that the threads of a process have used, in seconds; those that have ended do not count."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += family(int(child))
    return found


def command(pid: int) -> str:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, where the machine has more than one."""
    if (cores := sorted(os.sched_getaffinity(0))) and len(cores) > 1:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[core % len(cores)]})
