"""What the store's scripts answer, as types.

Does not know Redis' commands (`tessera.jobs.scripts.jobs`) or connections (`tessera.jobs.store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from tessera.wire.jobs import Artifact, Job, JobError, JobKind, JobStatus
from tessera.wire.models import Card

Ending = Literal["completed", "failed", "cancelled", "queued", "lost"]
"""What became of a job that its holder gave up; `lost` when it was no longer its to give."""
Held = Literal["held", "cancel", "late", "lost"]
"""What a renewed lease says: go on; or stop: somebody cancelled, its deadline is over, or it is another's now."""


LEAST_PROGRESS = 10
"""Of 100, from which on a job's own pace says more than what others took."""


class Created(msgspec.Struct, frozen=True):
    """A job, and whether an idempotency key led to one that was there before."""

    job: Job
    replayed: bool


class Lease(msgspec.Struct, frozen=True):
    """The right to work on a job: void as soon as a newer `token` was given out."""

    job: Job
    token: int
    short: bool = False
    """Whether it is expected to take little time."""


class NotClaimed(msgspec.Struct, frozen=True):
    """Why there is nothing to do for a ring."""

    reason: Literal["gone", "busy", "ended"]


EventName = Literal["queued", "in_progress", "progress", "preview", "completed", "failed", "cancelled"]


class JobEvent(msgspec.Struct, frozen=True):
    """Something that happened to a job, and how the job was then."""

    id: str
    """Of the stream: later events have greater ones."""
    name: EventName
    status: JobStatus
    progress: int
    attempts: int
    error: JobError | None
    picture: bytes = b""
    """JPEG, of a preview."""
    done: float | None = None
    total: float | None = None

    @property
    def last(self) -> bool:
        """Whether nothing comes after it."""
        return self.name in ("completed", "failed", "cancelled")


class Page(msgspec.Struct, frozen=True):
    """A stretch of an owner's jobs."""

    jobs: list[Job]
    has_more: bool


class Ring(msgspec.Struct, frozen=True):
    """A job that a worker should hear of."""

    job_id: str
    queue: str


class Counts(msgspec.Struct, frozen=True):
    """Jobs by state, all owners together."""

    queued: int
    in_progress: int
    ended: int


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker: what it can do and where it runs."""

    id: str
    kind: JobKind
    queue: str
    card: Card
    device: str
    pid: int
    slots: int = 1
    """Jobs that it does at once."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: bytes | None) -> float | None:
    return float(value) if value else None


def _fields(reply: Mapping[Any, Any] | Sequence[Any]) -> dict[str, bytes]:
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(key): value for key, value in pairs}


def job_from(reply: Mapping[Any, Any] | Sequence[Any]) -> Job:
    """The job of a record as HGETALL gives it."""
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
    """When a job will begin and end, from what others of its queue took; None where nothing is known."""
    if "now" not in fields:
        return None, None
    now, unit_s, slots = int(fields["now"]) / 1e6, float(fields["seconds"]), int(fields["slots"])
    takes_s = unit_s * float(fields["cost"])
    if fields["status"] == b"in_progress":
        assert started_at is not None
        progress = int(fields["progress"])
        if progress >= LEAST_PROGRESS:
            takes_s = (now - started_at) * 100 / progress
        return started_at, max(now, started_at + takes_s)
    if not slots:
        return None, None
    start = now + unit_s * float(fields["ahead"]) / slots
    return start, start + takes_s


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
    """The answer to a claim."""
    outcome = _text(reply[0])
    if outcome == "claimed":
        return Lease(job_from(reply[2]), int(reply[1]), short=_fields(reply[2]).get("class") == b"short")
    return NotClaimed(cast("Literal['gone', 'busy', 'ended']", outcome))


def page_from(reply: Sequence[Any]) -> Page | None:
    """The answer to a list; None when the id to start after is not the owner's."""
    outcome = _text(reply[0])
    if outcome == "unknown":
        return None
    return Page([job_from(record) for record in reply[1:]], has_more=outcome == "more")


def rings_from(reply: Sequence[Any]) -> list[Ring]:
    """The answer to a reaping."""
    return [Ring(_text(job_id), _text(queue)) for job_id, queue in zip(reply[::2], reply[1::2], strict=True)]


def ending_from(reply: Any) -> Ending:
    """The answer to completing, failing or releasing."""
    return cast("Ending", _text(reply))


def held_from(reply: Any) -> Held:
    """The answer to a renewal."""
    return cast("Held", _text(reply))


def workers_from(reply: Sequence[bytes]) -> list[WorkerInfo]:
    """The answer to a look for workers, in a stable order."""
    found = [msgspec.json.decode(worker, type=WorkerInfo) for worker in reply]
    return sorted(found, key=lambda worker: worker.id)
