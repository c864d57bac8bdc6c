"""The answers of the store's scripts as types, and how they are decoded. Knows neither Redis' commands nor
connections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from tessera.wire.jobs import Artifact, Job, JobError, JobKind, JobStatus
from tessera.wire.models import Card

Ending = Literal["completed", "failed", "cancelled", "queued", "lost"]
"""State of a job after its holder ended an attempt; `lost` if the holder's lease was void already."""
Held = Literal["held", "cancel", "late", "lost"]
"""Answer to a renewal: go on (`held`), or stop because of a cancel, a missed deadline, or a lost lease."""


MOST_TIMES_TIMED = 8
"""Cost of a job by that of the largest which was timed, up to which its time is estimated: of a clip of a second, only
what starts and ends it may have been timed."""
MIN_PROGRESS_FOR_PACE = 10
"""Progress, of 100, from which a job's own pace estimates its end better than the pace of earlier jobs."""


class Created(msgspec.Struct, frozen=True):
    """An accepted job, and whether an idempotency key led to one that was accepted before."""

    job: Job
    replayed: bool


class Lease(msgspec.Struct, frozen=True):
    """The right to work on a job: void as soon as a newer fencing token was given out."""

    job: Job
    token: int
    short: bool = False
    """Whether the job is expected to take little time (`jobs.short_s`)."""


class NotClaimed(msgspec.Struct, frozen=True):
    """Why a ring leads to no job."""

    reason: Literal["gone", "busy", "ended"]


EventName = Literal["queued", "in_progress", "progress", "preview", "completed", "failed", "cancelled"]


class JobEvent(msgspec.Struct, frozen=True):
    """Something that happened to a job, and the job's state at that time."""

    id: str
    """Id of the entry in the job's stream; later events have greater ids."""
    name: EventName
    status: JobStatus
    progress: int
    attempts: int
    error: JobError | None
    picture: bytes = b""
    """The JPEG of a preview; empty for other events."""
    done: float | None = None
    total: float | None = None

    @property
    def last(self) -> bool:
        """Whether this event ends the job."""
        return self.name in ("completed", "failed", "cancelled")


class Page(msgspec.Struct, frozen=True):
    """A page of an owner's jobs."""

    jobs: list[Job]
    has_more: bool


class Ring(msgspec.Struct, frozen=True):
    """A job for which a worker is to be rung."""

    job_id: str
    queue: str


class Counts(msgspec.Struct, frozen=True):
    """The number of jobs in each state, over all owners."""

    queued: int
    in_progress: int
    ended: int


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is alive: what it can do and where it runs."""

    id: str
    kind: JobKind
    queue: str
    card: Card
    device: str
    pid: int
    slots: int = 1
    """Number of jobs that it does at once."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: bytes | None) -> float | None:
    return float(value) if value else None


def _fields(reply: Mapping[Any, Any] | Sequence[Any]) -> dict[str, bytes]:
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(key): value for key, value in pairs}


def job_from(reply: Mapping[Any, Any] | Sequence[Any]) -> Job:
    """The job of a record, from the reply to HGETALL."""
    fields = _fields(reply)

    def when(name: str) -> float | None:
        return int(fields[name]) / 1e6 if name in fields else None

    created_at, started_at = when("created_at"), when("started_at")
    assert created_at is not None
    estimated = _estimates(fields, started_at)
    return Job(
        id=_text(fields["id"]),
        kind=cast("JobKind", _text(fields["kind"])),
        owner=_text(fields["owner"]),
        queue=_text(fields["queue"]),
        status=cast("JobStatus", _text(fields["status"])),
        input=msgspec.Raw(fields["input"]),
        progress=int(fields["progress"]),
        done=_number(fields.get("done")),
        total=_number(fields.get("total")),
        attempts=int(fields["attempts"]),
        cancel_requested=fields.get("cancel") == b"1",
        created_at=created_at,
        started_at=started_at,
        ended_at=when("ended_at"),
        expires_at=when("expires_at"),
        deadline=when("deadline"),
        estimated_start_at=estimated[0],
        estimated_end_at=estimated[1],
        error=msgspec.json.decode(fields["error"], type=JobError) if "error" in fields else None,
        webhook=_text(fields["webhook"]) if "webhook" in fields else None,
        webhook_result=_text(fields["webhook_result"]) if "webhook_result" in fields else None,
        checkpoint=_text(fields["checkpoint"]) if "checkpoint" in fields else None,
        artifacts=msgspec.json.decode(fields["artifacts"], type=dict[str, Artifact]) if "artifacts" in fields else {},
    )


def _estimates(fields: Mapping[str, bytes], started_at: float | None) -> tuple[float | None, float | None]:
    """Estimated begin and end of a job in Unix seconds, from the times of others of its queue; None if unknown."""
    if "now" not in fields:
        return None, None
    now, unit_s, slots = int(fields["now"]) / 1e6, float(fields["seconds"]), int(fields["slots"])
    cost, largest = float(fields["cost"]), float(fields["largest"] or math.inf)
    takes_s = unit_s * cost if cost <= MOST_TIMES_TIMED * largest else None
    if fields["status"] == b"in_progress":
        assert started_at is not None
        progress = int(fields["progress"])
        if progress >= MIN_PROGRESS_FOR_PACE:
            takes_s = (now - started_at) * 100 / progress
        return started_at, None if takes_s is None else max(now, started_at + takes_s)
    if not slots:
        return None, None
    start = now + unit_s * float(fields["ahead"]) / slots
    return start, None if takes_s is None else start + takes_s


def events_from(reply: Sequence[Any]) -> list[JobEvent]:
    """The entries of a job's stream."""
    found = []
    for identity, pairs in reply:
        fields = _fields(pairs)
        error = fields["error"]
        found.append(
            JobEvent(
                id=_text(identity),
                name=cast("EventName", _text(fields["event"])),
                status=cast("JobStatus", _text(fields["status"])),
                progress=int(fields["progress"]),
                attempts=int(fields["attempt"]),
                error=msgspec.json.decode(error, type=JobError) if error else None,
                picture=fields.get("picture", b""),
                done=_number(fields.get("done")),
                total=_number(fields.get("total")),
            )
        )
    return found


def lease_from(reply: Sequence[Any]) -> Lease | NotClaimed:
    """The reply to a claim."""
    outcome = _text(reply[0])
    if outcome == "claimed":
        return Lease(job_from(reply[2]), int(reply[1]), short=_fields(reply[2]).get("class") == b"short")
    return NotClaimed(cast("Literal['gone', 'busy', 'ended']", outcome))


def page_from(reply: Sequence[Any]) -> Page | None:
    """The reply to a list; None if the id to start after is not the owner's."""
    outcome = _text(reply[0])
    if outcome == "unknown":
        return None
    return Page([job_from(record) for record in reply[1:]], has_more=outcome == "more")


def rings_from(reply: Sequence[Any]) -> list[Ring]:
    """The reply to a reaping."""
    return [Ring(_text(job_id), _text(queue)) for job_id, queue in zip(reply[::2], reply[1::2], strict=True)]


def ending_from(reply: Any) -> Ending:
    """The reply to completing, failing or releasing."""
    return cast("Ending", _text(reply))


def held_from(reply: Any) -> Held:
    """The reply to a renewal."""
    return cast("Held", _text(reply))


def workers_from(reply: Sequence[bytes]) -> list[WorkerInfo]:
    """The reply to a request for the live workers, in a stable order."""
    found = [msgspec.json.decode(worker, type=WorkerInfo) for worker in reply]
    return sorted(found, key=lambda worker: worker.id)
