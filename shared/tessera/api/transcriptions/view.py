"""A transcription job as its client sees it. Does not know routes, or what is in a transcript."""

from __future__ import annotations

import msgspec

from tessera.api.job_resources import rounded_seconds
from tessera.wire.jobs import Job, TranscriptionInput
from tessera.wire.transcription_jobs import TranscriptionJob


def transcription_job_of(job: Job) -> TranscriptionJob:
    """The job, as it is now."""
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
        expires_at=rounded_seconds(job.expires_at),
        estimated_start_at=rounded_seconds(job.estimated_start_at),
        estimated_completion_at=rounded_seconds(job.estimated_end_at),
        error=job.error if job.status in ("failed", "cancelled") else None,
    )
