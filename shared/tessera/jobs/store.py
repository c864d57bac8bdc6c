"""The job store: the durable truth about every job, in Redis.

`AsyncJobStore` is what an HTTP process needs (create, look, cancel, delete); `JobStore` what workers and reapers need
(claim, renew, end, sweep). Every change is one script of `tessera.jobs.scripts`; a job in progress is changed only by
who has the newest fencing token. Does not know what a job does (`tessera.jobs.runner`) nor who rings (`celery_app`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import msgspec
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tessera.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    UnprocessableError,
)
from tessera.jobs import records, scripts
from tessera.jobs.records import Counts, Created, Ending, Held, Lease, NotClaimed, Page, Ring, WorkerInfo
from tessera.settings import JobSettings
from tessera.wire.jobs import Artifact, Job, JobError, JobKind

logger = logging.getLogger(__name__)

IDEMPOTENCY_S = 24 * 3600
SWEEP_BATCH = 100
RING_PREFIX = "tessera:celery:"
"""Before the name of each list in which Celery keeps rings."""
_DOWN = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    OSError,
)


class Idempotency(msgspec.Struct, frozen=True):
    """A client's key for a request, and a hash of what it asked for."""

    key: str
    body_hash: str


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _down(error: Exception) -> UnavailableError:
    logger.warning("the job store does not answer: %s", error)  # the address is for the log, not for clients
    return UnavailableError("the job store (Redis) does not answer; try again in a moment", retry_after=2)


class AsyncJobStore:
    """The side of the HTTP processes. Every method raises `UnavailableError` when Redis is down.

    Args:
        url: redis://, rediss:// or unix://.
        timeout_s: how long a silent server is waited for.
        settings: limits and times.
    """

    def __init__(self, url: str, *, timeout_s: float, settings: JobSettings) -> None:
        self.settings = settings
        self._redis = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=AsyncRetry(NoBackoff(), 1),
        )
        self._scripts = {name: self._redis.register_script(text) for name, text in _sources().items()}

    async def create(
        self,
        job_id: str,
        *,
        kind: JobKind,
        owner: str,
        queue: str,
        job_input: msgspec.Struct,
        idempotency: Idempotency | None = None,
    ) -> Created:
        """Write the record of a new job. Nobody has heard of it yet: ring next.

        Raises:
            OverloadedError: the owner has too many unfinished jobs.
            UnprocessableError: the idempotency key was used for another body.
        """
        key = hashlib.sha256(idempotency.key.encode()).hexdigest() if idempotency else ""
        reply = await self._run(
            "CREATE",
            job_id,
            kind,
            owner,
            queue,
            msgspec.json.encode(job_input),
            self.settings.max_queued_per_key,
            _microseconds(self.settings.reap_every_s),
            key,
            idempotency.body_hash if idempotency else "",
            IDEMPOTENCY_S,
        )
        outcome = bytes(reply[0])
        if outcome == b"full":
            raise OverloadedError(
                f"this key has {self.settings.max_queued_per_key} unfinished jobs, which is the most it may have "
                f"(jobs.max_queued_per_key); wait for one to end, or delete one",
                retry_after=5,
            )
        if outcome == b"conflict":
            raise UnprocessableError(
                "this Idempotency-Key was used with another body; use a new key for a new request",
                param="Idempotency-Key",
                code="idempotency_key_reused",
            )
        return Created(records.job_from(reply[1]), replayed=outcome == b"replayed")

    async def get(self, job_id: str, *, kind: JobKind, owner: str) -> Job:
        """The job as it is now.

        Raises:
            NotFoundError: there is none, or it is another owner's.
        """
        reply = await self._run("GET", job_id, kind, owner)
        if not reply:
            raise _not_found(kind, job_id)
        return records.job_from(reply)

    async def list(
        self, *, kind: JobKind, owner: str, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> Page:
        """At most `limit` of the owner's jobs by time of creation, beginning behind the job `after`.

        Raises:
            InvalidRequestError: `after` is no job of this owner.
        """
        page = records.page_from(await self._run("LIST", kind, owner, after or "", limit, order))
        if page is None:
            raise InvalidRequestError(f"`after`: there is no {kind} {after!r}", param="after")
        return page

    async def cancel(self, job_id: str, *, kind: JobKind, owner: str) -> Job:
        """Cancel: at once while the job is queued, at its worker's next step while it runs.

        Raises:
            NotFoundError: there is none, or it is another owner's.
            ConflictError: it has ended before.
        """
        reply = await self._run("CANCEL", job_id, kind, owner, _microseconds(self.settings.keep_s))
        outcome = bytes(reply[0])
        if outcome == b"gone":
            raise _not_found(kind, job_id)
        job = records.job_from(reply[1])
        if outcome == b"ended":
            raise ConflictError(f"the {kind} {job_id!r} is {job.status} and cannot be cancelled any more")
        return job

    async def delete(self, job_id: str, *, kind: JobKind, owner: str) -> None:
        """Forget the job, whatever its state; a worker that has it stops at its next step. Its files are left.

        Raises:
            NotFoundError: there is none, or it is another owner's.
        """
        if not await self._run("DELETE", job_id, kind, owner):
            raise _not_found(kind, job_id)

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are alive."""
        return records.workers_from(await self._run("WORKERS"))

    async def ping(self) -> None:
        """Nothing, when Redis answers."""
        async with self._answering():
            await self._redis.ping()

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        async with self._answering():
            return await self._scripts[name](args=list(arguments))

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            yield
        except _DOWN as error:
            raise _down(error) from error


class JobStore:
    """The side of workers and reapers; safe to use from several threads. Raises `UnavailableError` when Redis is down.

    Args:
        url: redis://, rediss:// or unix://.
        timeout_s: how long a silent server is waited for.
        settings: limits and times.
    """

    def __init__(self, url: str, *, timeout_s: float, settings: JobSettings) -> None:
        self.settings = settings
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
        )
        self._scripts = {name: self._redis.register_script(text) for name, text in _sources().items()}

    def claim(self, job_id: str, *, worker: str) -> Lease | NotClaimed:
        """Take the lease of a job that is queued, or whose lease has run out. Counts an attempt."""
        reply = self._run(
            "CLAIM",
            job_id,
            worker,
            _microseconds(self.settings.lease_s),
            self.settings.max_attempts,
            _microseconds(self.settings.keep_s),
        )
        return records.lease_from(reply)

    def renew(self, lease: Lease, *, progress: int) -> Held:
        """Hold the lease for another `lease_s`, and raise the job's progress (it never falls within an attempt)."""
        reply = self._run("RENEW", lease.job.id, lease.token, _microseconds(self.settings.lease_s), progress)
        return records.held_from(reply)

    def complete(self, lease: Lease, artifacts: Mapping[str, Artifact]) -> Ending:
        """End the job with its results: `completed`, `cancelled` when somebody asked for that before, or `lost`."""
        encoded = msgspec.json.encode(dict(artifacts))
        keep = _microseconds(self.settings.keep_s)
        return records.ending_from(self._run("COMPLETE", lease.job.id, lease.token, encoded, keep))

    def fail(self, lease: Lease, error: JobError, *, again: bool) -> Ending:
        """End the attempt with an error.

        Args:
            lease: the holder's.
            error: what to tell; kept as the last error while the job is tried again.
            again: whether another attempt could help; then the job is queued while it has attempts left.

        Returns:
            `failed`, `queued`, `cancelled` or `lost`.
        """
        reply = self._run(
            "FAIL",
            lease.job.id,
            lease.token,
            msgspec.json.encode(error),
            int(again),
            self.settings.max_attempts,
            _microseconds(self.settings.keep_s),
        )
        return records.ending_from(reply)

    def release(self, lease: Lease) -> Ending:
        """Give the job back untouched, so that another worker can take it at once; the attempt does not count."""
        reply = self._run("RELEASE", lease.job.id, lease.token, _microseconds(self.settings.keep_s))
        return records.ending_from(reply)

    def reap(self) -> list[Ring]:
        """Queue jobs whose lease ran out (or end them: cancelled, or out of attempts), and say for whom to ring.

        Several processes may do this at once: each due ring is answered to one of them, later ones wait longer.
        """
        reply = self._run(
            "REAP",
            self.settings.max_attempts,
            _microseconds(self.settings.keep_s),
            _microseconds(self.settings.reap_every_s),
            SWEEP_BATCH,
            RING_PREFIX,
        )
        return records.rings_from(reply)

    def expire(self) -> list[str]:
        """Forget ended jobs that were kept long enough. Returns their ids: their files are to be removed."""
        return [bytes(job_id).decode() for job_id in self._run("EXPIRE", SWEEP_BATCH)]

    def exists(self, job_id: str) -> bool:
        """Whether there is a record of this job."""
        with self._answering():
            return bool(self._redis.exists(f"tessera:job:{job_id}"))

    def counts(self) -> Counts:
        """How many jobs are in which state."""
        queued, in_progress, ended = self._run("COUNTS")
        return Counts(int(queued), int(in_progress), int(ended))

    def register_worker(self, worker: WorkerInfo, *, seconds: float) -> None:
        """Say that a worker is alive for the next `seconds`."""
        self._run("REGISTER_WORKER", worker.id, round(seconds * 1000), msgspec.json.encode(worker))

    def remove_worker(self, worker_id: str) -> None:
        """Say that a worker is gone."""
        self._run("REMOVE_WORKER", worker_id)

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        with self._answering():
            return self._scripts[name](args=list(arguments))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except _DOWN as error:
            raise _down(error) from error


def _sources() -> dict[str, str]:
    names = (
        "CREATE GET LIST CLAIM RENEW COMPLETE FAIL RELEASE CANCEL DELETE EXPIRE REAP "
        "REGISTER_WORKER REMOVE_WORKER WORKERS COUNTS"
    )
    return {name: scripts.PRELUDE + getattr(scripts, name) for name in names.split()}


def _not_found(kind: JobKind, job_id: str) -> NotFoundError:
    return NotFoundError(f"there is no {kind} {job_id!r}", code=f"{kind}_not_found")
