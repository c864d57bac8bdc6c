"""Orders that begin with a completed video: a remix makes it again with another prompt, an extension lets it go on.

A derived video is a job like any other. What it begins with is copied to the new job, so that the earlier video may be
deleted. Does not know HTTP beyond the form, nor how frames are made.
"""

from __future__ import annotations

import msgspec

from tessera.api.generation_parameters import seed_of
from tessera.api.job_resources import JobResources
from tessera.api.videos.request import StoredFile, VideoOrder, check_limits, checked_id
from tessera.errors import ConflictError, InvalidRequestError
from tessera.settings.video import VideoSettings
from tessera.web.forms import Form
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoExtendRequest, VideoRemixRequest


async def remix_order(form: Form, jobs: JobResources, owner: str, video_id: str) -> VideoOrder:
    """The order of `POST /v1/videos/{id}/remix`: all is as it was but the prompt, also the noise that it begins with.

    Raises:
        InvalidRequestError: a wrong field, or limits that have become stricter since the video was made.
        NotFoundError: the owner has no such video.
        ConflictError: the video is not completed.
    """
    if form.files:
        name = next(iter(form.files))
        raise InvalidRequestError(f"`{name}` is not a file of this request: a remix takes none", param=name)
    request = form.decode(VideoRemixRequest)
    source = await _completed(jobs, owner, video_id, "is remixed")
    given = msgspec.json.decode(source.input, type=VideoInput)
    card = await jobs.cards(given.model)
    job_input = msgspec.structs.replace(given, prompt=request.prompt, remixed_from=video_id)
    check_limits(job_input, card, jobs.settings.video)
    # What the earlier job began with: its first frame, or the video that it went on from.
    content_type = None if given.extends is None else "application/octet-stream"
    begins_with = None if given.image is None else StoredFile(given.image, content_type)
    return VideoOrder(request, job_input, card, begins_with, f"{video_id} {form.fingerprint()}")


async def extension_order(form: Form, jobs: JobResources, owner: str) -> VideoOrder:
    """The order of `POST /v1/videos/extensions`: a clip that begins with the earlier one and goes on from its end.

    Raises:
        InvalidRequestError: a wrong field, a model that starts from no frame, or a part or a whole that is too long.
        NotFoundError: the owner has no such video.
        ConflictError: the video is not completed.
    """
    if form.files:
        raise InvalidRequestError(
            "a video is named by its id here (`video[id]` of a form, `video.id` in JSON); files are not taken",
            param=next(iter(form.files)),
        )
    request = form.decode(VideoExtendRequest)
    source = await _completed(jobs, owner, request.video.id, "can go on")
    given = msgspec.json.decode(source.input, type=VideoInput)
    card = await jobs.cards(given.model)
    job_input = _extended(request, source, given, card, jobs.settings.video)
    # `_extended` has checked the length of the new part and of the whole.
    check_limits(msgspec.structs.replace(job_input, frames=1), card, jobs.settings.video)
    video = source.artifacts["video"]
    return VideoOrder(request, job_input, card, StoredFile(video.key, video.content_type), form.fingerprint())


async def _completed(jobs: JobResources, owner: str, video_id: str, purpose: str) -> Job:
    source = await jobs.store.get(checked_id(video_id), kind="video", owner=owner)
    if source.status != "completed":
        status = "failed" if source.status == "cancelled" else source.status
        raise ConflictError(f"the video {video_id!r} is {status}; only a completed one {purpose}")
    return source


def _extended(
    request: VideoExtendRequest, source: Job, given: VideoInput, card: Card, settings: VideoSettings
) -> VideoInput:
    """The input of the job: one frame more than is new, because the first is the earlier clip's last.

    Raises:
        InvalidRequestError: the model starts from no frame, or the part or the whole would be too long.
    """
    if card.image_input == "none":
        raise InvalidRequestError(
            f"the model {card.id!r} is text to video: it starts from no frame, so its videos cannot go on",
            param="video",
            code="unsupported_operation",
        )
    seconds, multiple = float(request.seconds), card.frames_multiple
    if not 0 < seconds <= settings.max_seconds:
        raise InvalidRequestError(
            f"`seconds` is {request.seconds}; it must be over 0 and at most {settings.max_seconds}", param="seconds"
        )
    new = max(1, round(seconds * given.fps / multiple)) * multiple
    before = _frames_of(given)
    most = int(settings.max_extended_seconds * given.fps)
    if before + new > most:
        left = max(0, most - before) / given.fps
        raise InvalidRequestError(
            f"the whole would have {(before + new) / given.fps:g} seconds; `video.max_extended_seconds` is "
            f"{settings.max_extended_seconds}, which leaves {left:g}",
            param="seconds",
        )
    return msgspec.structs.replace(
        given,
        prompt=request.prompt,
        frames=new + 1,
        seconds=f"{(before + new) / given.fps:g}",
        seed=seed_of(request.seed),
        extends=source.id,
        before=before,
        remixed_from=None,
    )


def _frames_of(given: VideoInput) -> int:
    """The number of frames in the file of a job."""
    return given.frames if given.extends is None else given.before + given.frames - 1
