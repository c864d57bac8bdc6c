"""Checkpoints of one video job: read after an earlier attempt, written every few steps and when a worker drains.

A thread of its own writes them, so that no step waits for a disk. A full disk or an unreadable checkpoint never fails a
job; it costs only time. Does not know a checkpoint's content (`tessera.diffusion.checkpoint` does).
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
"""Name and content type of a checkpoint among a job's artifacts."""


class Checkpoints:
    """The checkpoints of one attempt at a job.

    Args:
        context: the attempt's context.
        artifacts: store in which checkpoints are kept.
        writer: executor with one thread, which writes them.
        identity: identity of job, model and libraries; a checkpoint with another identity is refused.
        every: steps between two checkpoints; 0 writes none.
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
        """Return the checkpoint of an earlier attempt; None when there is none that can be read."""
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
        """Report a finished step, and write a checkpoint when one is due. Does not block.

        Raises:
            JobStoppedError: see `JobContext.step`.
        """
        is_due = freeze is not None and self.every > 0
        try:
            self.context.step(progress)
        except JobStoppedError as stopped:
            if stopped.reason == "draining" and is_due and index:
                assert freeze is not None
                self._last = freeze()
            raise
        if is_due and index and index % self.every == 0 and (self._writing is None or self._writing.done()):
            assert freeze is not None
            self._writing = self.writer.submit(self._write, freeze())

    def finish(self) -> None:
        """Write the checkpoint of a drain and wait for all writes. To be called before the attempt ends."""
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
