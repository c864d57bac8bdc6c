"""One suite per data directory: a lock that the kernel releases when the supervisor ends, however it ends.

Knows nothing about what the suite does with the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import StartError

LOCK_FILE = "suite.lock"
LEFTOVERS_S = 15.0
"""Seconds that the processes of a killed suite have to end before the next suite gives up."""


@contextlib.contextmanager
def held(data_dir: Path) -> Iterator[int]:
    """Hold the lock of `data_dir`, which is made when it is missing. Yields the lock's file descriptor.

    Processes that inherit the descriptor keep the lock when their supervisor is killed: while its Redis still writes
    its data, the next suite waits.

    Raises:
        StartError: another suite runs on the directory (names its process), or the directory cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StartError(
            f"cannot write to the data directory {data_dir}: {error.strerror}; choose another by --data"
        ) from error
    try:
        deadline = time.monotonic() + LEFTOVERS_S
        while not _taken(descriptor):
            written = _written(descriptor)
            if written is not None and _lives(written):
                raise StartError(
                    f"a suite already runs on {data_dir} (process {written}); "
                    "stop it, or choose another directory by --data and other ports"
                )
            if time.monotonic() > deadline:
                raise StartError(f"processes of a suite that was killed still use {data_dir}; end them and try again")
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def holder(data_dir: Path) -> int | None:
    """Process id of the supervisor whose suite runs on `data_dir` now; None when no suite does."""
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = _written(descriptor)
        return None if written == os.getpid() else written
    else:
        return None
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
