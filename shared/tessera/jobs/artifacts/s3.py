"""Artifacts in an S3 bucket, through fsspec, with the promises of `tessera.jobs.artifacts.store`.

A file is written to the local disk and then sent whole; a bucket shows an object only when it has all of it, checked
against the checksum that came with it. What fails on the way (a bucket that is down, a network that is cut) is an
`UnavailableError`, after which a job is tried again. Needs the extra `s3`. Does not know jobs.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import aiohttp
import botocore.exceptions
import s3fs
from fsspec.asyn import sync

from tessera.errors import NotFoundError, UnavailableError
from tessera.jobs.artifacts.store import UnfinishedArtifact, describe, open_incoming, parts_of, remove_abandoned
from tessera.settings.jobs import ArtifactSettings
from tessera.wire.jobs import Artifact

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
"""Seconds that connecting to the bucket may take at most."""
RETRY_S = 5.0
"""Seconds after which a client may try again. A fixed time: what is wrong with a bucket, and for how long, is known to
those who run it."""
TRIES = 3
"""Most attempts at a request to the bucket."""
MIN_BYTES_PER_S = 256 * 1024
"""Bytes per second below which a bucket that receives a file counts as down."""
_BUCKET_ERRORS = (
    OSError,
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    aiohttp.ClientError,
)


class S3Artifacts:
    """Files in a bucket: `<prefix>/<job id>/<rest of the key>`. Connects to nothing yet.

    Args:
        settings: bucket, server and keys.
        outgoing: directory for files that are being sent; made if it is missing.
    """

    def __init__(self, settings: ArtifactSettings, outgoing: Path) -> None:
        self.root = settings.url.removeprefix("s3://").rstrip("/")
        self.outgoing = outgoing
        self._files = s3fs.S3FileSystem(
            key=settings.access_key or None,
            secret=settings.secret_key or None,
            endpoint_url=settings.endpoint_url or None,
            client_kwargs={"region_name": settings.region} if settings.region else {},
            config_kwargs={
                "connect_timeout": min(CONNECT_S, settings.timeout_s),
                "read_timeout": settings.timeout_s,
                "retries": {"max_attempts": 1},
            },
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._files.retries = TRIES
        self._timeout_s = settings.timeout_s

    @contextmanager
    def create(self, key: str, content_type: str) -> Iterator[UnfinishedArtifact]:
        """Implement `ArtifactStore.create`."""
        path = self._path(key)
        with open_incoming(self.outgoing, key) as unfinished:
            yield unfinished
            stored = describe(unfinished.path, key, content_type)
            with _bucket_errors_translated():
                self._bounded(
                    self._files._put_file(
                        str(unfinished.path), path, ContentType=content_type, Metadata={"sha256": stored.sha256}
                    ),
                    stored.bytes,
                )
        unfinished.store_as(stored)

    def put(self, key: str, data: bytes, content_type: str) -> Artifact:
        """Implement `ArtifactStore.put`."""
        with self.create(key, content_type) as unfinished:
            unfinished.path.write_bytes(data)
        return unfinished.artifact

    def open(self, key: str) -> BinaryIO:
        """Implement `ArtifactStore.open`. Each read is one request for that range alone."""
        path = self._path(key)
        with _bucket_errors_translated(key):
            size = int(self._files.info(path)["size"])
        return cast("BinaryIO", _ObjectReader(self._files, path, key, size))

    def discard(self, key: str) -> None:
        """Implement `ArtifactStore.discard`."""
        path = self._path(key)
        with _bucket_errors_translated():
            self._files.rm_file(path)

    def remove(self, job_id: str) -> None:
        """Implement `ArtifactStore.remove`."""
        with _bucket_errors_translated():
            for path in self._files.find(self._path(job_id)):
                self._files.rm_file(path)

    def stale(self, older_than_s: float) -> Iterator[str]:
        """Implement `ArtifactStore.stale`."""
        remove_abandoned(self.outgoing)
        youngest: dict[str, float] = {}
        with _bucket_errors_translated():
            found = self._files.find(self.root, detail=True)
        for path, described_as in found.items():
            job_id = path.removeprefix(f"{self.root}/").partition("/")[0]
            youngest[job_id] = max(youngest.get(job_id, 0.0), described_as["LastModified"].timestamp())
        before = time.time() - older_than_s
        yield from (job_id for job_id, changed in youngest.items() if changed < before)

    def _bounded(self, work: Coroutine[Any, Any, Any], size: int) -> None:
        """Run `work` under a time limit for `size` bytes. The client's own time-outs do not notice a silent server
        while something is sent to it; this one also ends the sending, so nothing is published later."""

        async def bounded() -> None:
            async with asyncio.timeout(self._timeout_s * TRIES + size / MIN_BYTES_PER_S):
                await work

        sync(self._files.loop, bounded)

    def _path(self, key: str) -> str:
        return "/".join((self.root, *parts_of(key)))


class _ObjectReader(io.RawIOBase):
    """A stored object for reading, from any position."""

    def __init__(self, files: Any, path: str, key: str, size: int) -> None:
        self._files = files
        self._path = path
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._fetch(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._fetch(self._size)

    def _fetch(self, length: int) -> bytes:
        end = min(self._position + length, self._size)
        if end <= self._position:
            return b""
        with _bucket_errors_translated(self._key):
            data: bytes = self._files.cat_file(self._path, start=self._position, end=end)
        if len(data) != end - self._position:
            raise UnavailableError("the bucket of artifacts sent less than was asked for; try again")
        self._position = end
        return data


@contextmanager
def _bucket_errors_translated(key: str | None = None) -> Iterator[None]:
    """Turn errors of the bucket into `UnavailableError`; a missing object is a `NotFoundError` if `key` is being
    read."""
    try:
        yield
    except FileNotFoundError as error:
        if key is not None:
            raise NotFoundError(f"the file {key!r} is not in the artifact store any more") from error
        raise _unavailable(error) from error
    except _BUCKET_ERRORS as error:
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> UnavailableError:
    logger.error("the bucket of artifacts: %s", error)
    return UnavailableError(
        "the bucket of artifacts does not answer, or refuses; the log says why. Try again in a moment",
        code="artifacts_unavailable",
        retry_after=RETRY_S,
    )
