"""`/v1/videos` as OpenAI has it, the same in the gateway and in the video service: it reads and writes job records.

Each handler passes the modules of this folder once: `request` (or `derived_request`) makes an order of the body,
`submission` accepts it, `view` shows the job. Does not know who makes the video, nor which keys there are: the owner is
what the guard of the app put into the scope.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Controller, HttpMethod, Response, delete, get, post, route
from litestar.params import Parameter
from litestar.response import Stream

from tessera.api.downloads import artifact_response
from tessera.api.job_events import event_stream
from tessera.api.job_headers import idempotency_of, last_event_id, owner_of, poll_headers
from tessera.api.job_resources import JobResources
from tessera.api.videos.derived_request import extension_order, remix_order
from tessera.api.videos.request import checked_id, order_from
from tessera.api.videos.submission import submit
from tessera.api.videos.view import accepted, video_event, video_of
from tessera.errors import ConflictError, InvalidRequestError
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.web.forms import read_form
from tessera.web.sse import stream_response
from tessera.wire.jobs import Job
from tessera.wire.videos import (
    Video,
    VideoCreateRequest,
    VideoDeleted,
    VideoEditRequest,
    VideoExtendRequest,
    VideoList,
    VideoPreview,
    VideoRemixRequest,
)

VideoId = Annotated[str, Parameter(description="Id of a video.")]
MAX_LIST = 100
"""Most videos of one page of a list."""


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
    async def create(self, request: HTTPRequest, jobs: Injected[JobResources]) -> Response[Video]:
        """Answers at once with a job to poll. An `Idempotency-Key` header makes repeating the request safe."""
        order = await order_from(await read_form(request), jobs)
        return accepted(await submit(jobs, owner_of(request), order, idempotency_of(request, order.fingerprint)))

    @post(
        "/{video_id:str}/remix",
        status_code=200,
        summary="Make a variation of a video.",
        operation_class=documented(VideoRemixRequest, "application/json", "multipart/form-data"),
    )
    async def remix(self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId) -> Response[Video]:
        """A new job with another prompt and all else as it was: model, seed, first frame, size, length, steps, format.

        The noise that it begins with is the same, so what the prompts have in common tends to stay where it was.
        """
        owner = owner_of(request)
        order = await remix_order(await read_form(request), jobs, owner, video_id)
        return accepted(await submit(jobs, owner, order, idempotency_of(request, order.fingerprint)))

    @post(
        "/extensions",
        status_code=200,
        summary="Let a video go on.",
        operation_class=documented(VideoExtendRequest, "multipart/form-data", "application/json"),
    )
    async def extend(self, request: HTTPRequest, jobs: Injected[JobResources]) -> Response[Video]:
        """A new job whose clip begins with the old one and goes on from its last frame, by the same model, at the same
        size and rate. For models that start from a given frame."""
        owner = owner_of(request)
        order = await extension_order(await read_form(request), jobs, owner)
        return accepted(await submit(jobs, owner, order, idempotency_of(request, order.fingerprint)))

    @post(
        "/edits",
        status_code=200,
        summary="Edit a video: no model here can.",
        operation_class=documented(VideoEditRequest, "multipart/form-data", "application/json"),
    )
    async def edit(self, request: HTTPRequest) -> Response[Video]:
        """Always an error that names what there is instead."""
        await read_form(request)
        raise InvalidRequestError(
            "no model of this server edits a video that was made: `POST /v1/videos/{id}/remix` makes it again with "
            "another prompt, `POST /v1/videos/extensions` lets it go on",
            param="video",
            code="unsupported_operation",
        )

    @get("/", summary="List videos.")
    async def list_videos(
        self,
        request: HTTPRequest,
        jobs: Injected[JobResources],
        after: Annotated[str | None, Parameter(description="Id of the last video of the page before.")] = None,
        limit: Annotated[int, Parameter(ge=1, le=MAX_LIST)] = 20,
        order: Annotated[Literal["asc", "desc"], Parameter(description="By time of creation.")] = "desc",
    ) -> Response[VideoList]:
        """The videos by time of creation, the newest first unless `order` is `asc`."""
        page = await jobs.store.list(kind="video", owner=owner_of(request), after=after, limit=limit, order=order)
        videos = [video_of(job) for job in page.jobs]
        first, last = (videos[0].id, videos[-1].id) if videos else (None, None)
        return json_response(VideoList(data=videos, first_id=first, last_id=last, has_more=page.has_more))

    @get("/{video_id:str}", summary="Look at a video job.")
    async def retrieve(self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId) -> Response[Video]:
        """Status and progress; `openai-poll-after-ms` says when to ask again."""
        job = await _video(jobs, request, video_id)
        return json_response(video_of(job), headers=poll_headers(job))

    @get(
        "/{video_id:str}/events", summary="Watch a video job.", operation_class=documented(events=Video | VideoPreview)
    )
    async def events(self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId) -> Stream:
        """Beyond OpenAI. Server-sent events from the job's beginning to its end, each with the video as it was then.

        `video.queued` (again after a lost worker), `video.in_progress`, `video.progress`, `video.preview` (a small
        JPEG of what it looks like now, as `image_url`; every `video.preview_steps`), and at the end `video.completed`
        or `video.failed`. With the header `Last-Event-ID` they go on behind that event.
        """
        after = last_event_id(request)
        await _video(jobs, request, video_id)
        events = jobs.store.events(checked_id(video_id), kind="video", owner=owner_of(request), after=after)
        return await stream_response(event_stream(events, video_event), done=False)

    @delete("/{video_id:str}", status_code=200, summary="Delete a video and its files.")
    async def delete_video(
        self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId
    ) -> Response[VideoDeleted]:
        """A job that runs is stopped at its next step."""
        await jobs.store.delete(checked_id(video_id), kind="video", owner=owner_of(request))
        await jobs.remove_files(video_id)
        return json_response(VideoDeleted(id=video_id))

    @post("/{video_id:str}/cancel", status_code=200, summary="Stop a video job but keep its record.")
    async def cancel(self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId) -> Response[Video]:
        """Beyond OpenAI. A job that runs stops at its next step and becomes `failed` with the code `cancelled`."""
        job = await jobs.store.cancel(checked_id(video_id), kind="video", owner=owner_of(request))
        return json_response(video_of(job), headers=poll_headers(job))

    @route(
        "/{video_id:str}/content",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="Download a finished video.",
        operation_class=documented(files=["video/mp4", "video/webm", "image/gif", "image/jpeg"]),
    )
    async def content(
        self,
        request: HTTPRequest,
        jobs: Injected[JobResources],
        video_id: VideoId,
        variant: Annotated[
            str, Parameter(description="`video`, `thumbnail` (a JPEG) or `spritesheet` (a JPEG of small frames).")
        ] = "video",
    ) -> Response[Any]:
        """The file, or the part of it that a `Range` header names."""
        job = await _video(jobs, request, video_id)
        if job.status != "completed":
            raise ConflictError(f"the video {video_id!r} is {video_of(job).status}; only a completed one has content")
        artifact = job.artifacts.get(variant)
        if artifact is None:
            known = ", ".join(sorted(job.artifacts))
            raise InvalidRequestError(f"`variant` is {variant!r}; this video has {known}", param="variant")
        name = f"{video_id}{'' if variant == 'video' else '-' + variant}.{artifact.key.rpartition('.')[2]}"
        return await artifact_response(request, jobs.artifacts, artifact, filename=name)


async def _video(jobs: JobResources, request: HTTPRequest, video_id: str) -> Job:
    return await jobs.store.get(checked_id(video_id), kind="video", owner=owner_of(request))
