"""One suite per data directory: a lock that the kernel releases when the supervisor ends, however it ends.

Does not know what the suite does with the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import StartError

LOCK_FILE = "suite.lock"


@contextlib.contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """Hold the lock of `data_dir`, which is made when missing.

    Raises:
        StartError: another suite runs on it (names its process), or the directory cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StartError(
            f"cannot write to the data directory {data_dir}: {error.strerror}; choose another by --data"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(
                f"a suite already runs on {data_dir} (process {_written(descriptor) or 'unknown'}); "
                "stop it, or choose another directory by --data and other ports"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(data_dir: Path) -> int | None:
    """Process id of another process whose suite runs on `data_dir` now; None when there is none."""
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
