"""A transcription job as its client sees it: the record, and its events. Does not know what is in a transcript."""

from __future__ import annotations

import msgspec
from litestar import Response

from tessera.api.job_headers import accepted_headers
from tessera.jobs.records import Created, JobEvent
from tessera.web.app import json_response
from tessera.web.sse import event
from tessera.wire.jobs import Job, TranscriptionInput
from tessera.wire.transcription_jobs import TranscriptionJob


def transcription_job_of(job: Job) -> TranscriptionJob:
    """The job as it is now."""
    given = msgspec.json.decode(job.input, type=TranscriptionInput)
    return TranscriptionJob(
        id=job.id,
        model=given.model,
        filename=given.filename,
        status=job.status,
        progress=job.progress,
        seconds=job.total,
        seconds_heard=job.done,
        response_format=given.response_format,
        formats=list(job.artifacts),
        created_at=int(job.created_at),
        completed_at=int(job.ended_at) if job.status == "completed" and job.ended_at is not None else None,
        expires_at=_rounded(job.expires_at),
        estimated_start_at=_rounded(job.estimated_start_at),
        estimated_completion_at=_rounded(job.estimated_end_at),
        error=job.error if job.status in ("failed", "cancelled") else None,
    )


def accepted(created: Created) -> Response[TranscriptionJob]:
    """202 with the job, or with the one that an idempotency key stands for."""
    return json_response(transcription_job_of(created.job), status=202, headers=accepted_headers(created))


def transcription_event(happened: JobEvent, job: Job) -> bytes:
    """A server-sent event: the job as it was when something happened to it."""
    then = msgspec.structs.replace(
        job,
        status=happened.status,
        progress=happened.progress,
        done=happened.done,
        total=happened.total,
        error=happened.error or job.error,
    )
    if not happened.last:
        then = msgspec.structs.replace(then, artifacts={}, ended_at=None, expires_at=None)
    return event(transcription_job_of(then), f"transcription.{happened.name}", identity=happened.id)


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)
