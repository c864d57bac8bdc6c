"""Runs jobs: claim one, renew its lease while a handler works, end its record under the fencing token.

At each `JobContext.step` the handler learns whether it has to stop: because the job was cancelled or is too late,
because another worker has the lease now, or because this process is to end (then the job is given back at once). A
thread of its own renews the lease, so a step never waits for Redis, and a Redis that is down for a while costs no
finished work. Does not know what a job does, nor who rings.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from tessera.errors import TesseraError, UnavailableError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.bell import Bell
from tessera.jobs.records import Ending, Lease, NotClaimed
from tessera.jobs.worker_store import WorkerStore
from tessera.wire.jobs import Artifact, Job, JobError

logger = logging.getLogger(__name__)

RETRY_EVERY_S = 0.5
"""Seconds between two attempts to reach a Redis that is down."""
RENEWALS_PER_LEASE = 3
"""Number of renewals in the time that a lease lasts, while the handler reports no step."""
MIN_RENEWAL_GAP_S = 0.1
"""Fewest seconds between two writes of progress. A model whose steps take milliseconds would otherwise keep Redis, the
services and every watching client as busy as itself. Whether it has to stop is still checked after each step."""
StopReason = Literal["cancelled", "late", "lost", "draining"]


class JobStoppedError(Exception):
    """Raised in a handler at a step where it has to stop. The handler lets it pass and stores nothing more."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason


class JobContext:
    """A handler's access to its job, and how it reports. The methods of the second half are for the lease's thread.

    Args:
        lease: the lease of the job.
        draining: set when the process is to end.
    """

    def __init__(self, lease: Lease, draining: threading.Event) -> None:
        self.job = lease.job
        self._lease = lease
        self._draining = draining
        self._stop: StopReason | None = None
        self._progress = 0
        self._measure: tuple[float, float] | None = None
        self._checkpoint: str | None = None
        self._preview = b""
        self._stepped = threading.Event()

    @property
    def checkpoint(self) -> str | None:
        """Key of the last artifact from which, according to this attempt, another one can go on; None before the
        first."""
        return self._checkpoint

    def checkpointed(self, key: str) -> None:
        """Report that another attempt can go on from an artifact, which is removed when the job has ended."""
        self._checkpoint = key
        self._stepped.set()

    def previewed(self, jpeg: bytes) -> None:
        """Show a picture to the clients that watch the job. Never blocks; an older one that was not sent yet is
        dropped."""
        self._preview = jpeg
        self._stepped.set()

    def step(self, progress: int, measure: tuple[float, float] | None = None) -> None:
        """Report progress (0 to 100) and stop here if it is time to. Never blocks.

        Args:
            progress: never falls within an attempt; a lower value is ignored.
            measure: how much is done and how much there is in all, in the unit of the kind of job; None keeps the last.

        Raises:
            JobStoppedError: the handler has to stop.
        """
        self._measure = measure or self._measure
        self._progress = max(self._progress, min(progress, 100))
        self._stepped.set()
        if self._stop is not None:
            raise JobStoppedError(self._stop)
        if self._draining.is_set():
            raise JobStoppedError("draining")

    def key(self, name: str) -> str:
        """The artifact key of a result, which no other attempt at this job uses."""
        return f"{self.job.id}/{self._lease.token}-{name}"

    def stop(self, reason: StopReason) -> None:
        """End the handler at its next step; the lease's thread calls this."""
        self._stop = reason

    def wait_for_step(self, timeout_s: float) -> int:
        """For the lease's thread: the progress after the next step, or after `timeout_s` seconds."""
        self._stepped.wait(timeout_s)
        self._stepped.clear()
        return self._progress

    def take_preview(self) -> bytes:
        """Take the picture that was not sent yet; empty if there is none. The lease's thread calls this."""
        jpeg, self._preview = self._preview, b""
        return jpeg

    @property
    def measure(self) -> tuple[float, float] | None:
        """For the lease's thread: how much was last reported done and how much there is in all; None before that."""
        return self._measure

    def wake(self) -> None:
        """End a `wait_for_step` now; the runner calls this."""
        self._stepped.set()


Handler = Callable[[Job, JobContext], Mapping[str, Artifact]]
"""Does a job and returns its artifacts by name. A `TesseraError` that is not retryable fails the job for good; after
any other error the job is tried again while it has attempts left."""
Outcome = Ending | Literal["gone", "draining"]
"""Outcome of a ring. `gone`: no job waits. `draining`: this process is to end and has claimed nothing."""


class JobRunner:
    """Does the jobs of a queue, one or several at a time (one thread each).

    A ring says that jobs wait, not which one is next: the store decides. A thread that received a ring goes on until no
    job waits. One of several slots is reserved for short jobs, so they never wait for long ones to end.

    Args:
        store: where the records are.
        artifacts: where handlers store their results.
        bell: rung when a job goes back to the queue.
        handlers: the handler of each kind of job.
        worker: id of this process.
        queue: name of the queue.
        slots: how many threads may call `run` at once.
    """

    def __init__(
        self,
        store: WorkerStore,
        artifacts: ArtifactStore,
        bell: Bell,
        handlers: Mapping[str, Handler],
        *,
        worker: str,
        queue: str,
        slots: int = 1,
    ) -> None:
        self.queue = queue
        self.slots = slots
        self._long = threading.BoundedSemaphore(max(1, slots - 1))
        self.store = store
        self.artifacts = artifacts
        self.bell = bell
        self.handlers = dict(handlers)
        self.worker = worker
        self.rings_received = 0
        """Rings received since the process began."""
        self._working = 0
        self._draining = threading.Event()
        self._counting = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a thread works on a ring now."""
        return self._working > 0

    def drain(self) -> None:
        """Stop at the next step and give running jobs back; take no new ones. Safe in a signal handler."""
        self._draining.set()

    def run(self, _rung_for: str = "") -> list[Outcome]:
        """Do jobs until none waits. Never raises for an error of a handler.

        Returns:
            The outcome of each, the last of them `gone` or `draining`.
        """
        with self._counting:
            self.rings_received += 1
            self._working += 1
        outcomes: list[Outcome] = []
        try:
            while not outcomes or outcomes[-1] not in ("gone", "draining"):
                outcomes.append(self._one())
        finally:
            with self._counting:
                self._working -= 1
        return outcomes

    def _one(self) -> Outcome:
        if self._draining.is_set():
            return "draining"
        may_be_long = self._long.acquire(blocking=False)
        try:
            claimed = self._claim(short_only=not may_be_long)
            if may_be_long and isinstance(claimed, Lease) and claimed.short:
                self._long.release()
                may_be_long = False
            return self._finish(claimed)
        finally:
            if may_be_long:
                self._long.release()

    def _finish(self, claimed: Lease | NotClaimed | None) -> Outcome:
        if claimed is None:
            return "draining"
        if isinstance(claimed, NotClaimed):
            return "gone"
        logger.info("%s begins (attempt %d)", claimed.job.id, claimed.job.attempts)
        outcome = self._work(claimed)
        logger.info("%s: %s", claimed.job.id, outcome)
        if outcome == "queued":
            self._ring(claimed.job)
        return outcome

    def _claim(self, *, short_only: bool) -> Lease | NotClaimed | None:
        while True:
            try:
                return self.store.claim_next(self.queue, worker=self.worker, short_only=short_only)
            except UnavailableError:
                if self._draining.wait(RETRY_EVERY_S):
                    return None

    def _work(self, lease: Lease) -> Ending:
        context = JobContext(lease, self._draining)
        try:
            handler = self.handlers[lease.job.kind]
            with self._lease_renewed(lease, context):
                artifacts = handler(lease.job, context)
                total = None if context.measure is None else context.measure[1]
                ending = self._persist(lambda: self.store.complete(lease, artifacts, total=total))
        except JobStoppedError as stopped:
            ending = self._stopped(lease, context, stopped.reason)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the job's error
            ending = self._failed(lease, error)
        if ending in ("cancelled", "lost"):
            self._remove_files(lease, ending)
        if ending in ("completed", "failed"):
            self._remove_checkpoints(lease, context)
        return ending

    def _stopped(self, lease: Lease, context: JobContext, reason: StopReason) -> Ending:
        if reason == "lost":
            return "lost"
        if reason == "draining":
            return self._persist(lambda: self.store.release(lease, context.checkpoint))
        error = JobError(code="cancelled", message="the job was cancelled")
        if reason == "late":
            error = JobError(
                code="deadline_exceeded", message="the job had not ended at the deadline that came with it"
            )
        return self._persist(lambda: self.store.fail(lease, error, again=False))

    def _failed(self, lease: Lease, error: Exception) -> Ending:
        if isinstance(error, TesseraError):
            body = error.body()
            known = JobError(code=body.code or body.type, message=body.message)
            again = error.retryable
        else:
            known = JobError(code="internal_error", message="the worker failed on this job; its log says why")
            again = True
        logger.error("%s failed: %s", lease.job.id, error, exc_info=None if isinstance(error, TesseraError) else error)
        return self._persist(lambda: self.store.fail(lease, known, again=again))

    def _persist(self, change: Callable[[], Ending]) -> Ending:
        """Write the end of an attempt, however long Redis is down, unless this process is to end."""
        while True:
            try:
                return change()
            except UnavailableError:
                if self._draining.wait(RETRY_EVERY_S):
                    logger.exception("the end of an attempt could not be written: its lease will run out")
                    return "lost"

    def _remove_files(self, lease: Lease, ending: Ending) -> None:
        """Remove what this attempt has stored for a job that was cancelled or deleted. After a lost lease the files go
        with the job itself: those of another attempt lie beside them."""
        try:
            if ending == "cancelled" or not self.store.exists(lease.job.id):
                self.artifacts.remove(lease.job.id)
        except UnavailableError:
            logger.warning("the files of %s stay until they are stale: Redis or their store is down", lease.job.id)

    def _remove_checkpoints(self, lease: Lease, context: JobContext) -> None:
        try:
            for key in {lease.job.checkpoint, context.checkpoint} - {None}:
                self.artifacts.discard(str(key))
        except UnavailableError:
            logger.warning("the checkpoint of %s goes with its other files: the store is down", lease.job.id)

    def _ring(self, job: Job) -> None:
        try:
            self.bell.ring(job.id, job.queue)
        except UnavailableError:
            logger.warning("%s was not rung for; the reaper will", job.id)

    @contextlib.contextmanager
    def _lease_renewed(self, lease: Lease, context: JobContext) -> Iterator[None]:
        """Renew the lease in a thread as long as the context is open."""
        closing = threading.Event()
        renewer = threading.Thread(
            target=self._renew_until_closed, args=(lease, context, closing), name="lease", daemon=True
        )
        renewer.start()
        try:
            yield
        finally:
            closing.set()
            context.wake()
            renewer.join()

    def _renew_until_closed(self, lease: Lease, context: JobContext, closing: threading.Event) -> None:
        every_s = self.store.settings.lease_s / RENEWALS_PER_LEASE
        due, wait_s, checkpoint = 0.0, every_s, None
        while not closing.is_set():
            progress = context.wait_for_step(wait_s)
            if closing.is_set():
                return
            preview = context.take_preview()
            wait_s = due - time.monotonic()
            try:
                if wait_s > 0 and not preview and context.checkpoint == checkpoint:
                    held = self.store.look(lease)
                else:
                    checkpoint = context.checkpoint
                    held = self.store.renew(
                        lease, progress=progress, checkpoint=checkpoint, preview=preview, measure=context.measure
                    )
                    due, wait_s = time.monotonic() + MIN_RENEWAL_GAP_S, every_s
            except UnavailableError:
                closing.wait(RETRY_EVERY_S)
                continue
            if held == "cancel":
                context.stop("cancelled")
            elif held == "late":
                context.stop("late")
            elif held == "lost":
                context.stop("lost")
                return
