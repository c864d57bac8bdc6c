"""`/v1/videos/extensions`: a completed video goes on; and `/v1/videos/edits`, which says that nobody here can.

An extension is a job like any video. What it begins with is the old video's file, kept with the new job, so that the
old one may be deleted. Does not know how frames are made.
"""

from __future__ import annotations

import asyncio
import uuid

import msgspec
from litestar import Response, post
from litestar.datastructures import State

from tessera.api.generation_parameters import seed_of
from tessera.api.job_resources import JobResources, idempotency_of, owner_of
from tessera.api.memory_check import check_memory
from tessera.api.videos.request import ImageUpload, body_hash, check_limits
from tessera.api.videos.submission import Submission, submit
from tessera.api.videos.view import accepted, checked_id, video_of
from tessera.errors import ConflictError, InvalidRequestError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.settings.video import VideoSettings
from tessera.telemetry import request_id_var
from tessera.web.dependencies import HTTPRequest
from tessera.web.docs import documented
from tessera.web.forms import Form, read_form
from tessera.wire.decoding import convert_form, decode_json
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import Video, VideoEditRequest, VideoExtendRequest


@post(
    "/v1/videos/extensions",
    status_code=200,
    summary="Let a video go on.",
    tags=["videos"],
    operation_class=documented(VideoExtendRequest, "multipart/form-data", "application/json"),
)
async def extend_video(request: HTTPRequest, state: State) -> Response[Video]:
    """A new job whose clip begins with the old one and goes on from its last frame, by the same model, at the same size
    and rate. For models that start from a given frame."""
    jobs: JobResources = state.videos
    form, is_form = await read_form(request)
    _refuse_files(form)
    body = await request.body()
    asked = convert_form(form.fields, VideoExtendRequest) if is_form else decode_json(body, VideoExtendRequest)
    source = await jobs.store.get(checked_id(asked.video.id), kind="video", owner=owner_of(request))
    if source.status != "completed":
        raise ConflictError(f"the video {source.id!r} is {video_of(source).status}; only a completed one can go on")
    given = msgspec.json.decode(source.input, type=VideoInput)
    card = await jobs.cards(given.model)
    job_id = f"video_{uuid.uuid4().hex}"
    job_input = _extended(asked, source, given, card, jobs.settings.video, image=f"{job_id}/input")
    # How long it may be was checked: what is new, and the whole.
    check_limits(msgspec.structs.replace(job_input, frames=1), card, jobs.settings.video)
    check_memory(job_input, card)
    file = await asyncio.to_thread(_file_of, jobs.artifacts, source)
    submission = Submission(job_id, job_input, asked, idempotency_of(request, body_hash(form)), file)
    return accepted(await submit(jobs, owner_of(request), submission))


@post(
    "/v1/videos/edits",
    status_code=200,
    summary="Edit a video: no model here can.",
    tags=["videos"],
    operation_class=documented(VideoEditRequest, "multipart/form-data", "application/json"),
)
async def edit_video(request: HTTPRequest) -> Response[Video]:
    """Always an error that names what there is instead."""
    await read_form(request)
    raise InvalidRequestError(
        "no model of this server edits a video that was made: `POST /v1/videos/{id}/remix` makes it again with another "
        "prompt, `POST /v1/videos/extensions` lets it go on",
        param="video",
        code="unsupported_operation",
    )


def _refuse_files(form: Form) -> None:
    if form.files:
        raise InvalidRequestError(
            "a video is named by its id here (`video[id]` of a form, `video.id` in JSON); files are not taken",
            param=next(iter(form.files)),
        )


def _extended(
    asked: VideoExtendRequest, source: Job, given: VideoInput, card: Card, settings: VideoSettings, *, image: str
) -> VideoInput:
    """What the worker gets: one frame more than is new, because the first is the old clip's last.

    Raises:
        InvalidRequestError: the model starts from no frame, or the part or the whole would be too long.
    """
    if card.image_input == "none":
        raise InvalidRequestError(
            f"the model {card.id!r} is text to video: it starts from no frame, so its videos cannot go on",
            param="video",
            code="unsupported_operation",
        )
    seconds, multiple = float(asked.seconds), card.frames_multiple
    if not 0 < seconds <= settings.max_seconds:
        raise InvalidRequestError(
            f"`seconds` is {asked.seconds}; it must be over 0 and at most {settings.max_seconds}", param="seconds"
        )
    new = max(1, round(seconds * given.fps / multiple)) * multiple
    before = frames_of(given)
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
        prompt=asked.prompt,
        frames=new + 1,
        seconds=f"{(before + new) / given.fps:g}",
        seed=seed_of(asked.seed),
        image=image,
        extends=source.id,
        before=before,
        remixed_from=None,
        request_id=request_id_var.get(),
    )


def frames_of(given: VideoInput) -> int:
    """How many frames the file of a job has."""
    return given.frames if given.extends is None else given.before + given.frames - 1


def _file_of(artifacts: ArtifactStore, source: Job) -> ImageUpload:
    """The old video's file. Raises `NotFoundError`."""
    found = source.artifacts["video"]
    with artifacts.open(found.key) as file:
        return ImageUpload(file.read(), found.content_type)
