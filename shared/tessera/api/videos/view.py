"""A video job as its client sees it. Does not know routes."""

from __future__ import annotations

import re

import msgspec
from litestar import Response

from tessera.api.job_resources import poll_headers, rounded_seconds
from tessera.errors import NotFoundError
from tessera.jobs.records import Created
from tessera.web.app import json_response
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.videos import Video, VideoError, VideoStatus

_ID = re.compile(r"^video_[0-9a-f]{32}$")


def video_of(job: Job) -> Video:
    """A job as OpenAI shows a video: a cancelled one is a failed one with the code `cancelled`."""
    given = msgspec.json.decode(job.input, type=VideoInput)
    status: VideoStatus = "failed" if job.status == "cancelled" else job.status
    return Video(
        id=job.id,
        model=given.model,
        prompt=given.prompt,
        status=status,
        progress=job.progress,
        seconds=given.seconds,
        size=f"{given.width}x{given.height}",
        created_at=int(job.created_at),
        completed_at=int(job.ended_at) if job.status == "completed" and job.ended_at is not None else None,
        expires_at=int(job.expires_at) if job.expires_at is not None else None,
        estimated_start_at=rounded_seconds(job.estimated_start_at),
        estimated_completion_at=rounded_seconds(job.estimated_end_at),
        error=VideoError(code=job.error.code, message=job.error.message) if job.error and status == "failed" else None,
        remixed_from_video_id=given.remixed_from,
        extended_from_video_id=given.extends,
    )


def accepted(created: Created) -> Response[Video]:
    """The answer to who made a job, or asked for it again."""
    replayed = {"idempotent-replayed": "true"} if created.replayed else {}
    return json_response(video_of(created.job), headers={**poll_headers(created.job), **replayed})


def checked_id(video_id: str) -> str:
    """The id of a video, or what looks like one. Raises `NotFoundError`."""
    if not _ID.match(video_id):
        raise NotFoundError(f"there is no video {video_id!r}", code="video_not_found")
    return video_id
