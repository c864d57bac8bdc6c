"""The files of jobs: inputs that a client uploaded and results that a worker made.

A file appears under its key whole or not at all (written beside it, flushed to disk, renamed). Two attempts at a job
use different keys, so a late worker cannot change a published file. `ArtifactStore` is the interface; the directory is
here, the bucket in `tessera.jobs.artifacts.s3`. Knows of a job only that each key begins with the job's id.
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
"""Seconds after which a half-written file counts as left by a killed process."""


class UnfinishedArtifact:
    """A file that is being written: write to `path`, then leave the context; then `artifact` describes what was
    stored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._artifact: Artifact | None = None

    @property
    def artifact(self) -> Artifact:
        """The stored file; only after the context was left without an error."""
        assert self._artifact is not None, "the file is not stored yet"
        return self._artifact

    def store_as(self, artifact: Artifact) -> None:
        """Record what was stored; the store calls this."""
        self._artifact = artifact


class ArtifactStore(Protocol):
    """Files by key. Safe to use from several threads and processes."""

    def create(self, key: str, content_type: str) -> AbstractContextManager[UnfinishedArtifact]:
        """A context with an `UnfinishedArtifact`; the file is published when the context is left without an error.

        Raises:
            StorageFullError: there is no room; nothing is published.
            UnavailableError: the store does not answer; nothing is published, and another attempt may help.
        """
        ...

    def put(self, key: str, data: bytes, content_type: str) -> Artifact:
        """Store bytes that are in memory. Raises the errors of `create`."""
        ...

    def open(self, key: str) -> BinaryIO:
        """The file for reading. A file of a directory stays readable if it is removed meanwhile.

        Raises:
            NotFoundError: there is no such file.
            UnavailableError: the store does not answer; reading may raise it, too.
        """
        ...

    def discard(self, key: str) -> None:
        """Remove one file. A missing file is no error."""
        ...

    def remove(self, job_id: str) -> None:
        """Remove all files of a job. A job without files is no error."""
        ...

    def stale(self, older_than_s: float) -> Iterator[str]:
        """Ids of jobs all of whose files are older than `older_than_s` seconds."""
        ...


class DirectoryArtifacts:
    """Files in a directory of one file system: `<job id>/<rest of the key>`.

    Args:
        directory: where the files are; made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def create(self, key: str, content_type: str) -> Iterator[UnfinishedArtifact]:
        """Implement `ArtifactStore.create`."""
        final = self._path(key)
        with open_incoming(self.directory / _INCOMING, key) as unfinished:
            yield unfinished
            stored = describe(unfinished.path, key, content_type, flush=True)
            final.parent.mkdir(parents=True, exist_ok=True)
            unfinished.path.replace(final)
            _flush_directory(final.parent)
        unfinished.store_as(stored)

    def put(self, key: str, data: bytes, content_type: str) -> Artifact:
        """Implement `ArtifactStore.put`."""
        with self.create(key, content_type) as unfinished:
            unfinished.path.write_bytes(data)
        return unfinished.artifact

    def open(self, key: str) -> BinaryIO:
        """Implement `ArtifactStore.open`."""
        try:
            return self._path(key).open("rb")
        except OSError as error:
            raise NotFoundError(f"the file {key!r} is not in the artifact store any more") from error

    def discard(self, key: str) -> None:
        """Implement `ArtifactStore.discard`."""
        self._path(key).unlink(missing_ok=True)

    def remove(self, job_id: str) -> None:
        """Implement `ArtifactStore.remove`."""
        shutil.rmtree(self._path(job_id), ignore_errors=True)

    def stale(self, older_than_s: float) -> Iterator[str]:
        """Implement `ArtifactStore.stale`. Removes what killed processes left half written, too."""
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
        NotFoundError: a part is empty, or has characters that mean something to a file system or a bucket.
    """
    parts = key.split("/")
    if not all(_PART.match(part) for part in parts) or parts[0] == _INCOMING:
        raise NotFoundError(f"{key!r} is no key of the artifact store")
    return parts


@contextmanager
def open_incoming(directory: Path, key: str) -> Iterator[UnfinishedArtifact]:
    """A file that is being written in a directory of unfinished files; removed afterwards unless it was moved.

    Raises:
        StorageFullError: there is no room, also if the context finds out.
    """
    unfinished: UnfinishedArtifact | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        prefix, suffix = f"{key.replace('/', '.')}-", Path(key).suffix
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=directory)
        os.close(descriptor)
        unfinished = UnfinishedArtifact(Path(name))
        yield unfinished
    except OSError as error:
        if error.errno in _NO_ROOM:
            logger.error("no room in %s: %s", directory, error)
            raise StorageFullError(
                "the artifact store is full, so the file was not stored; make room on its disk or delete old jobs"
            ) from error
        raise
    finally:
        if unfinished is not None:
            unfinished.path.unlink(missing_ok=True)


def describe(path: Path, key: str, content_type: str, *, flush: bool = False) -> Artifact:
    """Size and checksum of a finished file; with `flush`, its bytes are on the disk afterwards."""
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Artifact(key=key, content_type=content_type, bytes=file.tell(), sha256=digest)


def remove_abandoned(directory: Path) -> None:
    """Remove what killed processes have left half written in a directory of unfinished files."""
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
