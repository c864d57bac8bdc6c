"""A video job as its client sees it: the record as a `Video`, and its events. Does not know routes."""

from __future__ import annotations

import base64

import msgspec
from litestar import Response

from tessera.api.job_headers import accepted_headers
from tessera.jobs.records import Created, JobEvent
from tessera.web.app import json_response
from tessera.web.sse import event
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.videos import Video, VideoError, VideoPreview, VideoStatus


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
        estimated_start_at=None if job.estimated_start_at is None else round(job.estimated_start_at),
        estimated_completion_at=None if job.estimated_end_at is None else round(job.estimated_end_at),
        error=VideoError(code=job.error.code, message=job.error.message) if job.error and status == "failed" else None,
        remixed_from_video_id=given.remixed_from,
        extended_from_video_id=given.extends,
    )


def accepted(created: Created) -> Response[Video]:
    """The response that accepts a job, or repeats the one that an idempotency key stands for."""
    return json_response(video_of(created.job), headers=accepted_headers(created))


def video_event(happened: JobEvent, job: Job) -> bytes:
    """A server-sent event: the video as it was when something happened to it, or a preview of it."""
    if happened.name == "preview":
        return event(_preview_of(happened, job.id), "video.preview", identity=happened.id)
    then = msgspec.structs.replace(
        job, status=happened.status, progress=happened.progress, error=happened.error or job.error
    )
    name = "failed" if happened.name == "cancelled" else happened.name
    return event(video_of(then), f"video.{name}", identity=happened.id)


def _preview_of(happened: JobEvent, video_id: str) -> VideoPreview:
    encoded = base64.b64encode(happened.picture).decode()
    return VideoPreview(id=video_id, progress=happened.progress, image_url=f"data:image/jpeg;base64,{encoded}")
