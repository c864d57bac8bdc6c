"""The job store as HTTP processes use it: create, get, watch, list, cancel, delete. Workers use `worker_store`.

Every change is one script of `tessera.jobs.scripts`. Does not know what a job does, nor who rings for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import msgspec

from tessera.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnprocessableError,
)
from tessera.jobs import records
from tessera.jobs.connection import connect_async, microseconds, redis_errors_translated, sources
from tessera.jobs.disk import JobDisks, job_disks
from tessera.jobs.event_subscription import EventSubscription, wait_for_event
from tessera.jobs.records import Created, JobEvent, Page, WorkerInfo
from tessera.settings.jobs import JobSettings
from tessera.settings.tree import Settings
from tessera.wire.jobs import Job, JobKind

UNKNOWN_WAIT_S = 5.0
"""Seconds that a refused client is told to wait while no job of the queue has ended yet."""
IDEMPOTENCY_S = 24 * 3600
"""Seconds for which an idempotency key stands for its job."""
EVENTS_AT_ONCE = 100
"""Most events that are read from a job's stream at once."""


class Idempotency(msgspec.Struct, frozen=True):
    """A client's key for a request, and a hash of what it asked for."""

    key: str
    body_hash: str


class AsyncJobStore:
    """The asynchronous side, for HTTP processes. Every method raises `UnavailableError` when Redis is down, and says so
    if it is its disk that is full.

    Args:
        url: address of Redis: redis://, rediss:// or unix://.
        timeout_s: seconds after which a Redis that does not answer counts as down.
        settings: limits and times of jobs.
        disks: where jobs are kept; by default on disks of other machines.
    """

    def __init__(self, url: str, *, timeout_s: float, settings: JobSettings, disks: JobDisks | None = None) -> None:
        self.settings = settings
        self._disks = disks or JobDisks(None, None, 0)
        self._redis = connect_async(url, timeout_s)
        self._scripts = {name: self._redis.register_script(text) for name, text in sources().items()}
        self._subscription = EventSubscription(self._redis)

    async def create(
        self,
        job_id: str,
        *,
        kind: JobKind,
        owner: str,
        queue: str,
        job_input: msgspec.Struct,
        idempotency: Idempotency | None = None,
        cost: float = 1.0,
        priority: int = 0,
        deadline_s: float | None = None,
        webhook: str | None = None,
        keep_s: float | None = None,
    ) -> Created:
        """Write the record of a new job. No worker knows of it yet: ring next.

        Args:
            job_id: id that no job has.
            kind: kind of job.
            owner: whose job it is; nobody else sees it.
            queue: name of the queue whose workers can do it.
            job_input: what the worker gets.
            idempotency: the client's key for this request; None if it sent none.
            cost: how much work the job is, in a unit of its queue.
            priority: place among the owner's jobs; higher waits longer.
            deadline_s: seconds until the job is failed if it has not ended; None for no limit.
            webhook: address that is told when the job has ended, checked before; None for none.
            keep_s: seconds that the job is kept when it has ended; None is `jobs.keep_s`.

        Raises:
            JobStoreFullError, StorageFullError: a disk has no space for what the job will write.
            OverloadedError: the owner has too many unfinished jobs.
            UnprocessableError: the idempotency key was used for another body.
        """
        await asyncio.to_thread(self._disks.check)
        key = hashlib.sha256(idempotency.key.encode()).hexdigest() if idempotency else ""
        reply = await self._run(
            "CREATE",
            job_id,
            kind,
            owner,
            queue,
            msgspec.json.encode(job_input),
            self.settings.max_queued_per_key,
            microseconds(self.settings.reap_every_s),
            key,
            idempotency.body_hash if idempotency else "",
            IDEMPOTENCY_S,
            repr(float(cost)),
            priority,
            "" if deadline_s is None else microseconds(deadline_s),
            microseconds(self.settings.short_s),
            webhook or "",
            "" if keep_s is None else microseconds(keep_s),
        )
        outcome = bytes(reply[0])
        if outcome == b"full":
            raise OverloadedError(
                f"this key has {self.settings.max_queued_per_key} unfinished jobs, which is the most it may have "
                f"(jobs.max_queued_per_key); wait for one to end, or delete one",
                retry_after=_seconds_to_an_end([records.job_from(each) for each in reply[1:]]),
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

    async def events(
        self, job_id: str, *, kind: JobKind, owner: str, after: str = ""
    ) -> AsyncGenerator[tuple[JobEvent, Job]]:
        """The events of a job after the event `after`, past and future, each with the record as it is now.

        Ends after the last event, or when the job is deleted.

        Raises:
            NotFoundError: there is none, or it is another owner's; only before the first event.
        """
        known = False
        with self._subscription.subscribe(job_id) as woken:
            while True:
                woken.clear()
                reply = await self._run("EVENTS", job_id, kind, owner, after, EVENTS_AT_ONCE)
                if not reply:
                    if known:
                        return
                    raise _not_found(kind, job_id)
                known, job = True, records.job_from(reply[0])
                found = records.events_from(reply[1])
                for event in found:
                    after = event.id
                    yield event, job
                # An ended job may have been begun again: only its latest end is one.
                if job.ended_at is not None and (not found or found[-1].last):
                    return
                if not found:
                    await wait_for_event(woken)

    async def list(
        self, *, kind: JobKind, owner: str, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> Page:
        """At most `limit` of the owner's jobs by time of creation, beginning after the job `after`.

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
        reply = await self._run("CANCEL", job_id, kind, owner, microseconds(self.settings.keep_s))
        outcome = bytes(reply[0])
        if outcome == b"gone":
            raise _not_found(kind, job_id)
        job = records.job_from(reply[1])
        if outcome == b"ended":
            raise ConflictError(f"the {kind} {job_id!r} is {job.status} and cannot be cancelled any more")
        return job

    async def delete(self, job_id: str, *, kind: JobKind, owner: str) -> None:
        """Remove the record of a job in any state; a worker that has it stops at its next step. Its files are left.

        Raises:
            NotFoundError: there is none, or it is another owner's.
        """
        if not await self._run("DELETE", job_id, kind, owner):
            raise _not_found(kind, job_id)

    async def webhooks_due(self, leave_alone_s: float, limit: int) -> Sequence[tuple[int, Job]]:
        """Ended jobs whose webhook is due, each with the number of this attempt. No other caller gets them for
        `leave_alone_s` seconds."""
        reply = await self._run("WEBHOOKS_DUE", microseconds(leave_alone_s), limit)
        return [(int(tries), records.job_from(record)) for tries, record in zip(reply[::2], reply[1::2], strict=True)]

    async def webhook_done(self, job_id: str, result: str, *, again_s: float | None) -> None:
        """Record the result of a delivery; it is due again in `again_s` seconds, or never if that is None."""
        again = "" if again_s is None else microseconds(again_s)
        await self._run("WEBHOOK_DONE", job_id, result, again)

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are alive."""
        return records.workers_from(await self._run("WORKERS"))

    async def ping(self) -> None:
        """Check that Redis answers."""
        with redis_errors_translated(self._disks):
            await self._redis.ping()

    async def close(self) -> None:
        """Close all connections."""
        await self._subscription.close()
        await self._redis.aclose()

    async def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        with redis_errors_translated(self._disks):
            return await self._scripts[name](args=list(arguments))


def make_job_store(settings: Settings) -> AsyncJobStore:
    """The job store that the settings choose. Connects to nothing yet."""
    return AsyncJobStore(
        settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs, disks=job_disks(settings)
    )


def _not_found(kind: JobKind, job_id: str) -> NotFoundError:
    return NotFoundError(f"there is no {kind} {job_id!r}", code=f"{kind}_not_found")


def _seconds_to_an_end(jobs: Sequence[Job]) -> float:
    """Seconds until the first of some unfinished jobs is expected to end; `UNKNOWN_WAIT_S` if nothing is known."""
    ends = [job.estimated_end_at for job in jobs if job.estimated_end_at is not None]
    return max(1.0, min(ends) - time.time()) if ends else UNKNOWN_WAIT_S
