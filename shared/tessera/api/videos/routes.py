"""`/v1/videos` as OpenAI has it, the same in the gateway and in the video service: it reads and writes job records.

Each app calls `mount_videos` once and passes on what it gets. Does not know who makes the video, nor which keys there
are: the owner is what the key middleware put into the scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, HttpMethod, Response, Router, delete, get, post, route
from litestar.datastructures import State
from litestar.params import Parameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from tessera.api.downloads import artifact_response
from tessera.api.images.routes import generate_images
from tessera.api.job_resources import (
    Cards,
    JobResources,
    Mounted,
    event_before,
    idempotency_of,
    mount_routes,
    owner_of,
    poll_headers,
    remove_files,
)
from tessera.api.memory_check import check_memory
from tessera.api.videos.extensions import edit_video, extend_video
from tessera.api.videos.previews import preview_of
from tessera.api.videos.request import (
    body_hash,
    check_limits,
    make_input,
    read_image,
    read_remix,
    read_request,
    stored_input,
)
from tessera.api.videos.submission import Submission, submit
from tessera.api.videos.view import accepted, checked_id, video_of
from tessera.errors import ConflictError, InvalidRequestError
from tessera.jobs.records import JobEvent
from tessera.settings.tree import Settings
from tessera.telemetry import request_id_var
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest
from tessera.web.docs import documented
from tessera.web.forms import read_form
from tessera.web.sse import PING, event, stream_response
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.videos import (
    Video,
    VideoCreateRequest,
    VideoDeleted,
    VideoList,
    VideoRemixRequest,
)

VideoId = Annotated[str, Parameter(description="Id of a video.")]

MAX_LIST = 100
FORM_OVERHEAD_BYTES = 256 * 1024


def mount_videos(settings: Settings, cards: Cards) -> Mounted:
    """Make the video routes of an app. Connects to nothing yet, and works again by itself after Redis was down.

    Args:
        settings: of the suite.
        cards: how this app finds the card of a video model.
    """
    # a data URL is a third longer than the image
    body_limit = settings.video.max_image_bytes * 4 // 3 + FORM_OVERHEAD_BYTES
    handlers: list[ControllerRouterHandler] = [VideosController, extend_video, edit_video, generate_images]
    router = Router("/", route_handlers=handlers, request_max_body_size=body_limit)

    return mount_routes("videos", [router], settings, cards)


class VideosController(Controller):
    """Video jobs of the key that asks."""

    path = "/v1/videos"
    tags = ("videos",)

    @post(
        "/",
        status_code=200,
        summary="Start a video.",
        operation_class=documented(
            VideoCreateRequest, "multipart/form-data", "application/json", file="input_reference"
        ),
    )
    async def create(self, request: HTTPRequest, state: State) -> Response[Video]:
        """Answers at once with a job to poll. An `Idempotency-Key` header makes repeating the request safe."""
        jobs: JobResources = state.videos
        form, is_form = await read_form(request)
        asked = read_request(form, await request.body(), is_form=is_form)
        card = await jobs.cards(asked.model)
        image = read_image(form, asked, card, jobs.settings.video)
        job_id = f"video_{uuid.uuid4().hex}"
        image_key = f"{job_id}/input" if image is not None else None
        job_input = make_input(asked, card, jobs.settings.video, image=image_key, request_id=request_id_var.get())
        check_memory(job_input, card)
        submission = Submission(job_id, job_input, asked, idempotency_of(request, body_hash(form)), image)
        return accepted(await submit(jobs, owner_of(request), submission))

    @post(
        "/{video_id:str}/remix",
        status_code=200,
        summary="Make a variation of a video.",
        operation_class=documented(VideoRemixRequest, "application/json", "multipart/form-data"),
    )
    async def remix(self, request: HTTPRequest, state: State, video_id: VideoId) -> Response[Video]:
        """A new job with another prompt and all else as it was: model, seed, first frame, size, length, steps, format.

        The noise that it begins with is the same, so what the prompts have in common tends to stay where it was.
        """
        jobs: JobResources = state.videos
        form, is_form = await read_form(request)
        asked = read_remix(form, await request.body(), is_form=is_form)
        source = await _job(request, state, video_id)
        if source.status != "completed":
            raise ConflictError(f"the video {video_id!r} is {video_of(source).status}; only a completed one is remixed")
        given = msgspec.json.decode(source.input, type=VideoInput)
        card = await jobs.cards(given.model)
        image = await asyncio.to_thread(stored_input, jobs.artifacts, given)
        job_id = f"video_{uuid.uuid4().hex}"
        job_input = msgspec.structs.replace(
            given,
            prompt=asked.prompt,
            image=f"{job_id}/input" if image is not None else None,
            remixed_from=video_id,
            request_id=request_id_var.get(),
        )
        check_limits(job_input, card, jobs.settings.video)
        check_memory(job_input, card)
        submission = Submission(
            job_id, job_input, asked, idempotency_of(request, f"{video_id} {body_hash(form)}"), image
        )
        return accepted(await submit(jobs, owner_of(request), submission))

    @get("/", summary="List videos.")
    async def list_videos(
        self,
        request: HTTPRequest,
        state: State,
        after: Annotated[str | None, Parameter(description="Id of the last video of the page before.")] = None,
        limit: Annotated[int, Parameter(ge=1, le=MAX_LIST)] = 20,
        order: Annotated[Literal["asc", "desc"], Parameter(description="By time of creation.")] = "desc",
    ) -> Response[VideoList]:
        """By time of creation, the newest first unless `order` says otherwise."""
        jobs: JobResources = state.videos
        page = await jobs.store.list(kind="video", owner=owner_of(request), after=after, limit=limit, order=order)
        videos = [video_of(job) for job in page.jobs]
        first, last = (videos[0].id, videos[-1].id) if videos else (None, None)
        return json_response(VideoList(data=videos, first_id=first, last_id=last, has_more=page.has_more))

    @get("/{video_id:str}", summary="Look at a video job.")
    async def retrieve(self, request: HTTPRequest, state: State, video_id: VideoId) -> Response[Video]:
        """Status and progress; `openai-poll-after-ms` says when to ask again."""
        job = await _job(request, state, video_id)
        return json_response(video_of(job), headers=poll_headers(job))

    @get("/{video_id:str}/events", summary="Watch a video job.")
    async def events(self, request: HTTPRequest, state: State, video_id: VideoId) -> Stream:
        """Beyond OpenAI. Server-sent events from the job's beginning to its end, each with the video as it was then.

        `video.queued` (again after a lost worker), `video.in_progress`, `video.progress`, `video.preview` (a small
        JPEG of what it looks like now, as `image_url`; every `video.preview_steps`), and at the end `video.completed`
        or `video.failed`. With the header `Last-Event-ID` they go on behind that event.
        """
        jobs: JobResources = state.videos
        after = event_before(request)
        await _job(request, state, video_id)
        found = jobs.store.events(checked_id(video_id), kind="video", owner=owner_of(request), after=after)
        return await stream_response(_shown(found), done=False)

    @delete("/{video_id:str}", status_code=200, summary="Delete a video and its files.")
    async def delete_video(self, request: HTTPRequest, state: State, video_id: VideoId) -> Response[VideoDeleted]:
        """A job that runs is stopped at its next step."""
        jobs: JobResources = state.videos
        await jobs.store.delete(checked_id(video_id), kind="video", owner=owner_of(request))
        await remove_files(jobs, video_id)
        return json_response(VideoDeleted(id=video_id))

    @post("/{video_id:str}/cancel", status_code=200, summary="Stop a video job but keep its record.")
    async def cancel(self, request: HTTPRequest, state: State, video_id: VideoId) -> Response[Video]:
        """Beyond OpenAI. A job that runs stops at its next step and becomes `failed` with the code `cancelled`."""
        jobs: JobResources = state.videos
        job = await jobs.store.cancel(checked_id(video_id), kind="video", owner=owner_of(request))
        return json_response(video_of(job), headers=poll_headers(job))

    @route(
        "/{video_id:str}/content",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="Download a finished video.",
    )
    async def content(
        self,
        request: HTTPRequest,
        state: State,
        video_id: VideoId,
        variant: Annotated[
            str, Parameter(description="`video`, `thumbnail` (a JPEG) or `spritesheet` (a JPEG of small frames).")
        ] = "video",
    ) -> Response[Any]:
        """The file, or the part of it that a `Range` header names."""
        job = await _job(request, state, video_id)
        if job.status != "completed":
            raise ConflictError(f"the video {video_id!r} is {video_of(job).status}; only a completed one has content")
        artifact = job.artifacts.get(variant)
        if artifact is None:
            known = ", ".join(sorted(job.artifacts))
            raise InvalidRequestError(f"`variant` is {variant!r}; this video has {known}", param="variant")
        name = f"{video_id}{'' if variant == 'video' else '-' + variant}.{artifact.key.rpartition('.')[2]}"
        return await artifact_response(request, state.videos.artifacts, artifact, filename=name)


async def _shown(events: AsyncGenerator[tuple[JobEvent, Job]]) -> AsyncIterator[bytes]:
    yield PING  # so that the answer begins, though nothing may happen for long
    async with contextlib.aclosing(events):
        async for happened, job in events:
            then = msgspec.structs.replace(
                job, status=happened.status, progress=happened.progress, error=happened.error or job.error
            )
            if happened.name == "preview":
                yield event(preview_of(happened, job.id), "video.preview", identity=happened.id)
                continue
            name = "failed" if happened.name == "cancelled" else happened.name
            yield event(video_of(then), f"video.{name}", identity=happened.id)


async def _job(request: HTTPRequest, state: State, video_id: str) -> Job:
    jobs: JobResources = state.videos
    return await jobs.store.get(checked_id(video_id), kind="video", owner=owner_of(request))
