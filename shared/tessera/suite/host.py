"""Asks the operating system about this machine: free memory and disk, holders of ports, GPUs.

Reads /proc, /sys and nvidia-smi, without torch. Knows nothing about what the suite needs (`tessera.suite.doctor`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
from pathlib import Path

LISTENING = "0A"
NVIDIA_SMI_S = 10.0


def memory_available(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of available memory: the kernel's estimate, or what this process's control groups leave if less."""
    found = [value for value in (_meminfo(proc), _cgroup_left(proc, cgroup)) if value is not None]
    return min(found, default=None)


def port_problem(host: str, port: int) -> str | None:
    """Why nobody can listen on a port; None if one can. Binds the port and closes it at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return f"`{host}` is no address of this machine ({error.strerror})"
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
            trial.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"taken by {port_holder(port) or 'a process that cannot be named (of another user?)'}"
            return str(error.strerror)
    return None


def port_holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """Name and id of the process that listens on a TCP port; None when this user may not see it."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in proc.iterdir() if inodes else ():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    return f"process {process.name} ({command[:80]})"
    return None


def gpus() -> list[str]:
    """Name and memory of every NVIDIA GPU that the driver lists; empty without a driver."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return []
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return [path.name for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))]
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def writable(directory: Path) -> str | None:
    """Why files cannot be written in `directory`; None if they can.

    Makes the directory when it is missing, and writes and removes a probe file.
    """
    probe = directory / f".doctor-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _meminfo(proc: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup_left(proc: Path, cgroup: Path) -> int | None:
    """Fewest bytes that any of this process's control groups (version 2 or 1) leaves; None without a limit."""
    left = []
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers == "":
                root, limit_file, used_file = cgroup, "memory.max", "memory.current"
            elif "memory" in controllers.split(","):
                root, limit_file, used_file = cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                continue
            group = root / name.lstrip("/")
            for level in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):
                    limit, used = int((level / limit_file).read_text()), int((level / used_file).read_text())
                    left.append(max(limit - used + _reclaimable(level), 0))
                if level == root:
                    break
    return min(left, default=None)


def _reclaimable(group: Path) -> int:
    """Bytes of file cache that the kernel reclaims before it refuses memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in {"inactive_file", "total_inactive_file"}:
                return int(value)
    return 0
