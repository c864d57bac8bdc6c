"""Where jobs' files live: inputs that a client uploaded and results that a worker made.

A file appears under its key whole or not at all (written beside it, flushed to disk, renamed), and keys of two attempts
at a job differ, so a late worker cannot change what was published. `ArtifactStore` is what every place offers; the
directory is here, the bucket in `tessera.jobs.artifacts.s3`. Does not know jobs: a key begins with the id of the job
that it goes with.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from tessera.errors import NotFoundError, StorageFullError
from tessera.wire.jobs import Artifact

logger = logging.getLogger(__name__)

_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_INCOMING = "_incoming"
STALE_S = 24 * 3600


class UnfinishedArtifact:
    """A file being made: write to `path`, then leave the context; then `artifact` says what was stored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._artifact: Artifact | None = None

    @property
    def artifact(self) -> Artifact:
        """The stored file. Only after the context was left without an error."""
        assert self._artifact is not None, "the file is not stored yet"
        return self._artifact

    def store_as(self, artifact: Artifact) -> None:
        """Called by the store."""
        self._artifact = artifact


class ArtifactStore(Protocol):
    """Files by key. Safe to use from several threads and processes."""

    def create(self, key: str, content_type: str) -> AbstractContextManager[UnfinishedArtifact]:
        """A context with a `UnfinishedArtifact`; the file is published when the context is left without an error.

        Raises:
            StorageFullError: there is no room; nothing is published.
            UnavailableError: the store does not answer; nothing is published, and trying again may help.
        """
        ...

    def put(self, key: str, data: bytes, content_type: str) -> Artifact:
        """Store bytes that are in memory. Raises as `create` does."""
        ...

    def open(self, key: str) -> BinaryIO:
        """The file for reading. A directory's stays readable when it is removed meanwhile.

        Raises:
            NotFoundError: there is none.
            UnavailableError: the store does not answer; so does reading.
        """
        ...

    def discard(self, key: str) -> None:
        """Remove one file. None is no error."""
        ...

    def remove(self, job_id: str) -> None:
        """Remove all files of a job. None is no error."""
        ...

    def stale(self, older_than_s: float) -> Iterator[str]:
        """Ids of jobs that have files, none of them younger than `older_than_s`."""
        ...


class DirectoryArtifacts:
    """Files in a directory of one file system: `<job id>/<rest of the key>`.

    Args:
        directory: made when it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def create(self, key: str, content_type: str) -> Iterator[UnfinishedArtifact]:
        """See `ArtifactStore.create`."""
        final = self._path(key)
        with open_incoming(self.directory / _INCOMING, key) as pending:
            yield pending
            stored = describe(pending.path, key, content_type, flush=True)
            final.parent.mkdir(parents=True, exist_ok=True)
            pending.path.replace(final)
            _flush_directory(final.parent)
        pending.store_as(stored)

    def put(self, key: str, data: bytes, content_type: str) -> Artifact:
        """See `ArtifactStore.put`."""
        with self.create(key, content_type) as pending:
            pending.path.write_bytes(data)
        return pending.artifact

    def open(self, key: str) -> BinaryIO:
        """See `ArtifactStore.open`."""
        try:
            return self._path(key).open("rb")
        except OSError as error:
            raise NotFoundError(f"the file {key!r} is not in the artifact store any more") from error

    def discard(self, key: str) -> None:
        """See `ArtifactStore.discard`."""
        self._path(key).unlink(missing_ok=True)

    def remove(self, job_id: str) -> None:
        """See `ArtifactStore.remove`."""
        shutil.rmtree(self._path(job_id), ignore_errors=True)

    def stale(self, older_than_s: float) -> Iterator[str]:
        """See `ArtifactStore.stale`. Removes what killed processes left half written, too."""
        now = time.time()
        remove_abandoned(self.directory / _INCOMING)
        for folder in _entries(self.directory):
            if folder.name != _INCOMING and _youngest(folder, now) > older_than_s:
                yield folder.name

    def _path(self, key: str) -> Path:
        return self.directory.joinpath(*parts_of(key))


def parts_of(key: str) -> list[str]:
    """The parts of a key, the first of them the id of a job.

    Raises:
        NotFoundError: it is no key: empty parts, or letters that have a meaning somewhere.
    """
    parts = key.split("/")
    if not all(_PART.match(part) for part in parts) or parts[0] == _INCOMING:
        raise NotFoundError(f"{key!r} is no key of the artifact store")
    return parts


@contextmanager
def open_incoming(directory: Path, key: str) -> Iterator[UnfinishedArtifact]:
    """A file that is being made in a directory of its own; it is gone afterwards unless it was moved.

    Raises:
        StorageFullError: there is no room, also within the context.
    """
    pending: UnfinishedArtifact | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        prefix, suffix = f"{key.replace('/', '.')}-", Path(key).suffix
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=directory)
        os.close(descriptor)
        pending = UnfinishedArtifact(Path(name))
        yield pending
    except OSError as error:
        if error.errno in _NO_ROOM:
            logger.error("no room in %s: %s", directory, error)
            raise StorageFullError(
                "the artifact store is full, so the file was not stored; make room on its disk or delete old jobs"
            ) from error
        raise
    finally:
        if pending is not None:
            pending.path.unlink(missing_ok=True)


def describe(path: Path, key: str, content_type: str, *, flush: bool = False) -> Artifact:
    """Size and checksum of a finished file; with `flush` it is on its disk, too."""
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Artifact(key=key, content_type=content_type, bytes=file.tell(), sha256=digest)


def remove_abandoned(directory: Path) -> None:
    """Remove what killed processes have left half written in a directory of `incoming`."""
    now = time.time()
    for path in _entries(directory):
        if _age(path, now) > STALE_S:
            path.unlink(missing_ok=True)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _youngest(folder: Path, now: float) -> float:
    ages = [_age(path, now) for path in (folder, *folder.rglob("*"))]
    return min(ages)
