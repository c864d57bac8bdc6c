"""Checkpoints of one video job: read when an earlier attempt has left one, written every few steps and when a worker
drains.

Writing happens in a thread of its own, so no step waits for a disk; and it is never worth a job: a full disk or a file
that cannot be read costs time, not the video. Does not know what is in one (`tessera.diffusion.checkpoint`).
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future

from tessera.diffusion.request import Freeze, FrozenRequest, Resume
from tessera.errors import TesseraError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.worker.runner import JobContext, JobStoppedError

logger = logging.getLogger(__name__)

NAME, CONTENT_TYPE = "checkpoint.safetensors", "application/octet-stream"


class Checkpoints:
    """Of one attempt at a job.

    Args:
        context: of the attempt.
        artifacts: where they lie.
        writer: runs what writes, one at a time.
        identity: of job, model and libraries: what is equal when one can go on from a checkpoint.
        every: steps between two; 0 keeps none.
    """

    def __init__(
        self, context: JobContext, artifacts: ArtifactStore, writer: Executor, *, identity: str, every: int
    ) -> None:
        self.context = context
        self.artifacts = artifacts
        self.writer = writer
        self.identity = identity
        self.every = every
        self._writing: Future[None] | None = None
        self._last: FrozenRequest | None = None

    def find(self) -> Resume | None:
        """What an earlier attempt has left, if anything."""
        key = self.context.job.checkpoint
        if key is None or not self.every:
            return None
        try:
            with self.artifacts.open(key) as file:
                return Resume(file.read(), self.identity)
        except (TesseraError, OSError) as error:
            logger.warning("the checkpoint of %s is not there, so it begins anew: %s", self.context.job.id, error)
            return None

    def step(self, progress: int, index: int, freeze: Freeze | None) -> None:
        """A step is made: report it, and keep a checkpoint when it is time. Does not block.

        Raises:
            JobStoppedError: as `JobContext.step`.
        """
        keeps = freeze is not None and self.every > 0
        try:
            self.context.step(progress)
        except JobStoppedError as stopped:
            if stopped.reason == "draining" and keeps and index:
                assert freeze is not None
                self._last = freeze()
            raise
        if keeps and index and index % self.every == 0 and (self._writing is None or self._writing.done()):
            assert freeze is not None
            self._writing = self.writer.submit(self._write, freeze())

    def finish(self) -> None:
        """Wait for what is being written; write what a drain has left. Before the attempt ends."""
        if self._last is not None:
            self._writing = self.writer.submit(self._write, self._last)
        if self._writing is not None:
            self._writing.result()

    def _write(self, frozen: FrozenRequest) -> None:
        try:
            stored = self.artifacts.put(self.context.key(NAME), frozen.encode(self.identity), CONTENT_TYPE)
        except (TesseraError, OSError, TypeError) as error:
            logger.warning("no checkpoint of %s is kept: %s", self.context.job.id, error)
            self.every = 0
        else:
            self.context.checkpointed(stored.key)
