"""The disks of jobs: the embedded Redis writes to one, artifacts in a directory to one; usually both are the same.

A job is accepted only while there is space for what it will write, and a Redis that does not answer because its disk
is full is reported as a full disk. A Redis of its own address and a bucket have disks that cannot be looked at here.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from tessera.errors import JobStoreFullError, StorageFullError
from tessera.settings.tree import Settings

logger = logging.getLogger(__name__)

RETRY_S = 30.0
"""Seconds after which a client may try again when a disk is full. A fixed time: somebody has to free some space."""


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the file system of `path`, or of its nearest existing ancestor."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


class JobDisks:
    """The directories in which jobs are kept.

    Args:
        redis: directory of the embedded Redis; None if Redis runs elsewhere.
        artifacts: directory of artifacts; None if they are in a bucket.
        least_bytes: free bytes of each below which it counts as full.
    """

    def __init__(self, redis: Path | None, artifacts: Path | None, least_bytes: int) -> None:
        self._redis = redis
        self._artifacts = artifacts
        self._least_bytes = least_bytes

    def check(self) -> None:
        """Refuse a job for which there is no space. Asks the file systems, which may block.

        Raises:
            JobStoreFullError: the disk of the embedded Redis is full.
            StorageFullError: the disk of artifacts is full.
        """
        if shortage := self._shortage(self._redis):
            raise JobStoreFullError(f"no job is accepted: {shortage}", retry_after=RETRY_S)
        if shortage := self._shortage(self._artifacts):
            raise StorageFullError(f"no job is accepted: {shortage}", retry_after=RETRY_S)

    def reason(self) -> JobStoreFullError | None:
        """Why the embedded Redis cannot work, if it is its disk."""
        shortage = self._shortage(self._redis)
        return (
            JobStoreFullError(f"the job store (Redis) cannot work: {shortage}", retry_after=RETRY_S)
            if shortage
            else None
        )

    def _shortage(self, directory: Path | None) -> str:
        """What is wrong with the disk of a directory, and what to do; empty if it has space, or nobody can tell."""
        if directory is None:
            return ""
        try:
            free = free_bytes(directory)
        except OSError as error:
            logger.warning("cannot tell the free space of %s: %s", directory, error)
            return ""
        if free >= self._least_bytes:
            return ""
        return (
            f"the disk of {directory} has {free} bytes free, and jobs need {self._least_bytes} "
            f"(jobs.least_free_bytes); free some space there, or delete old jobs"
        )


def job_disks(settings: Settings) -> JobDisks:
    """The disks that the settings choose."""
    return JobDisks(
        None if settings.redis.url else settings.data_dir / "redis",
        None if settings.artifacts.url else settings.artifacts_dir,
        settings.jobs.least_free_bytes,
    )
