"""`/v1/videos` as OpenAI has it, the same in the gateway and in the video service: it reads and writes job records.

Each app calls `mount` once and passes on what it gets. Does not know who makes the video, nor which keys there are: the
owner is what the key middleware put into the scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, HttpMethod, Litestar, Request, Response, Router, delete, get, post, route
from litestar.datastructures import State
from litestar.params import Parameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from tessera.errors import ConflictError, InvalidRequestError, NotFoundError, RangeNotSatisfiableError, TesseraError
from tessera.jobs.artifacts import ArtifactStore, DirectoryArtifacts
from tessera.jobs.celery_app import Bell, make_bell
from tessera.jobs.records import JobEvent
from tessera.jobs.store import AsyncJobStore, Idempotency
from tessera.jobs.video_previews import preview_of
from tessera.jobs.video_request import body_hash, cost_of, make_input, read_image, read_request
from tessera.jobs.webhooks import checked_webhook
from tessera.settings import Settings
from tessera.telemetry import request_id_var
from tessera.web.app import Lifespan, ReadyCheck, json_response
from tessera.web.docs import documented
from tessera.web.errors import envelope
from tessera.web.forms import read_form
from tessera.web.ranges import ByteRange, chunks, parse_range
from tessera.web.sse import PING, event, stream_response
from tessera.wire.jobs import Job, VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import Video, VideoCreateRequest, VideoDeleted, VideoError, VideoList, VideoStatus

logger = logging.getLogger(__name__)

Cards = Callable[[str | None], Awaitable[Card]]
"""The card of a video model by its name (None: the default one). Raises `ModelNotFoundError` or `UnavailableError`."""

VideoId = Annotated[str, Parameter(description="Id of a video.")]

POLL_AFTER_MS = 500
MAX_LIST = 100
MAX_KEY_LENGTH = 255
FORM_OVERHEAD_BYTES = 256 * 1024
_ID = re.compile(r"^video_[0-9a-f]{32}$")
_EVENT_ID = re.compile(r"^[0-9]{1,20}-[0-9]{1,20}$")


@dataclass(frozen=True)
class VideoJobs:
    """What the routes work with: `state.videos` of the app."""

    store: AsyncJobStore
    artifacts: ArtifactStore
    bell: Bell
    cards: Cards
    settings: Settings


@dataclass(frozen=True)
class Mounted:
    """What an app passes to `build_app`, and the readiness of what the routes need (`{"redis": …}`)."""

    route_handlers: list[ControllerRouterHandler]
    lifespan: list[Lifespan]
    state: Mapping[str, Any]
    ready: ReadyCheck


def mount(settings: Settings, cards: Cards) -> Mounted:
    """Make the video routes of an app. Connects to nothing yet, and works again by itself after Redis was down.

    Args:
        settings: of the suite.
        cards: how this app finds the card of a video model.
    """
    store = AsyncJobStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    bell = make_bell(settings)
    jobs = VideoJobs(store, DirectoryArtifacts(settings.artifacts_dir), bell, cards, settings)
    # a data URL is a third longer than the image
    body_limit = settings.video.max_image_bytes * 4 // 3 + FORM_OVERHEAD_BYTES
    router = Router("/", route_handlers=[VideosController], request_max_body_size=body_limit)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await store.close()
            bell.close()

    async def ready() -> Mapping[str, str]:
        try:
            await store.ping()
        except TesseraError:
            return {"redis": "failed"}
        return {"redis": "ok"}

    return Mounted([router], [lifespan], {"videos": jobs}, ready)


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
    async def create(self, request: Request[Any, Any, Any], state: State) -> Response[bytes]:
        """Answers at once with a job to poll. An `Idempotency-Key` header makes repeating the request safe."""
        jobs: VideoJobs = state.videos
        form, is_form = await read_form(request)
        asked = read_request(form, await request.body(), is_form=is_form)
        card = await jobs.cards(asked.model)
        image = read_image(form, asked, card, jobs.settings.video)
        webhook = checked_webhook(asked.webhook_url, jobs.settings.webhooks)
        job_id = f"video_{uuid.uuid4().hex}"
        image_key = f"{job_id}/input" if image is not None else None
        job_input = make_input(asked, card, jobs.settings.video, image=image_key, request_id=request_id_var.get())
        if image is not None:
            await asyncio.to_thread(jobs.artifacts.put, f"{job_id}/input", image.data, image.content_type)
        try:
            created = await jobs.store.create(
                job_id,
                kind="video",
                owner=owner_of(request),
                queue=queue_of(card.id),
                job_input=job_input,
                idempotency=_idempotency(request, body_hash(form)),
                cost=cost_of(job_input),
                priority=asked.priority,
                deadline_s=asked.deadline_s,
                webhook=webhook,
            )
        except TesseraError:
            await asyncio.to_thread(jobs.artifacts.remove, job_id)
            raise
        if created.replayed:
            await asyncio.to_thread(jobs.artifacts.remove, job_id)
        else:
            await _ring(jobs.bell, created.job)
        headers = {"idempotent-replayed": "true"} if created.replayed else {}
        return json_response(video_of(created.job), headers={**_poll(created.job), **headers})

    @get("/", summary="List videos.")
    async def list_videos(
        self,
        request: Request[Any, Any, Any],
        state: State,
        after: Annotated[str | None, Parameter(description="Id of the last video of the page before.")] = None,
        limit: Annotated[int, Parameter(ge=1, le=MAX_LIST)] = 20,
        order: Annotated[Literal["asc", "desc"], Parameter(description="By time of creation.")] = "desc",
    ) -> Response[bytes]:
        """By time of creation, the newest first unless `order` says otherwise."""
        jobs: VideoJobs = state.videos
        page = await jobs.store.list(kind="video", owner=owner_of(request), after=after, limit=limit, order=order)
        videos = [video_of(job) for job in page.jobs]
        first, last = (videos[0].id, videos[-1].id) if videos else (None, None)
        return json_response(VideoList(data=videos, first_id=first, last_id=last, has_more=page.has_more))

    @get("/{video_id:str}", summary="Look at a video job.")
    async def retrieve(self, request: Request[Any, Any, Any], state: State, video_id: VideoId) -> Response[bytes]:
        """Status and progress; `openai-poll-after-ms` says when to ask again."""
        job = await _job(request, state, video_id)
        return json_response(video_of(job), headers=_poll(job))

    @get("/{video_id:str}/events", summary="Watch a video job.")
    async def events(self, request: Request[Any, Any, Any], state: State, video_id: VideoId) -> Stream:
        """Beyond OpenAI. Server-sent events from the job's beginning to its end, each with the video as it was then.

        `video.queued` (again after a lost worker), `video.in_progress`, `video.progress`, `video.preview` (a small
        JPEG of what it looks like now, as `image_url`; every `video.preview_steps`), and at the end `video.completed`
        or `video.failed`. With the header `Last-Event-ID` they go on behind that event.
        """
        jobs: VideoJobs = state.videos
        after = request.headers.get("last-event-id", "")
        if after and not _EVENT_ID.match(after):
            raise InvalidRequestError("`Last-Event-ID` is no id of an event of this stream", param="Last-Event-ID")
        await _job(request, state, video_id)
        found = jobs.store.events(_checked(video_id), kind="video", owner=owner_of(request), after=after)
        return await stream_response(_shown(found), done=False)

    @delete("/{video_id:str}", status_code=200, summary="Delete a video and its files.")
    async def delete_video(self, request: Request[Any, Any, Any], state: State, video_id: VideoId) -> Response[bytes]:
        """A job that runs is stopped at its next step."""
        jobs: VideoJobs = state.videos
        await jobs.store.delete(_checked(video_id), kind="video", owner=owner_of(request))
        await asyncio.to_thread(jobs.artifacts.remove, video_id)
        return json_response(VideoDeleted(id=video_id))

    @post("/{video_id:str}/cancel", status_code=200, summary="Stop a video job but keep its record.")
    async def cancel(self, request: Request[Any, Any, Any], state: State, video_id: VideoId) -> Response[bytes]:
        """Beyond OpenAI. A job that runs stops at its next step and becomes `failed` with the code `cancelled`."""
        jobs: VideoJobs = state.videos
        job = await jobs.store.cancel(_checked(video_id), kind="video", owner=owner_of(request))
        return json_response(video_of(job), headers=_poll(job))

    @route(
        "/{video_id:str}/content",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="Download a finished video.",
    )
    async def content(
        self,
        request: Request[Any, Any, Any],
        state: State,
        video_id: VideoId,
        variant: Annotated[str, Parameter(description="`video` (MP4) or `thumbnail` (JPEG).")] = "video",
    ) -> Response[Any]:
        """The file, or the part of it that a `Range` header names."""
        job = await _job(request, state, video_id)
        if job.status != "completed":
            raise ConflictError(f"the video {video_id!r} is {video_of(job).status}; only a completed one has content")
        artifact = job.artifacts.get(variant)
        if artifact is None:
            known = ", ".join(sorted(job.artifacts))
            raise InvalidRequestError(f"`variant` is {variant!r}; this video has {known}", param="variant")
        etag = f'"{artifact.sha256}"'
        headers = {"accept-ranges": "bytes", "etag": etag, "content-type": artifact.content_type}
        if request.headers.get("if-none-match") == etag:
            return Response(b"", status_code=304, headers=headers)
        unchanged = request.headers.get("if-range", etag) == etag
        try:
            part = parse_range(request.headers.get("range") if unchanged else None, artifact.bytes)
        except ValueError:
            problem = RangeNotSatisfiableError(f"the file has {artifact.bytes} bytes", param="Range")
            headers = {"content-range": f"bytes */{artifact.bytes}"}
            return Response(envelope(problem), status_code=416, headers=headers, media_type="application/json")
        whole = part or ByteRange(0, artifact.bytes)
        headers["content-length"] = str(whole.length)
        if part is not None:
            headers["content-range"] = f"bytes {part.start}-{part.start + part.length - 1}/{artifact.bytes}"
        status = 200 if part is None else 206
        if request.method == HttpMethod.HEAD:
            return Response(b"", status_code=status, headers=headers)
        file = await asyncio.to_thread(state.videos.artifacts.open, artifact.key)
        return Stream(chunks(file, whole), status_code=status, headers=headers, media_type=artifact.content_type)


def owner_of(request: Request[Any, Any, Any]) -> str:
    """Whose jobs a request may see."""
    return str(request.scope.get("tessera.owner", "anonymous"))


def queue_of(model: str) -> str:
    """The queue that the workers of a video model listen to."""
    return f"video.{model}"


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
        estimated_start_at=_rounded(job.estimated_start_at),
        estimated_completion_at=_rounded(job.estimated_end_at),
        error=VideoError(code=job.error.code, message=job.error.message) if job.error and status == "failed" else None,
    )


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


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


async def _job(request: Request[Any, Any, Any], state: State, video_id: str) -> Job:
    jobs: VideoJobs = state.videos
    return await jobs.store.get(_checked(video_id), kind="video", owner=owner_of(request))


def _checked(video_id: str) -> str:
    if not _ID.match(video_id):
        raise NotFoundError(f"there is no video {video_id!r}", code="video_not_found")
    return video_id


def _poll(job: Job) -> dict[str, str]:
    return {"openai-poll-after-ms": str(POLL_AFTER_MS)} if job.status in ("queued", "in_progress") else {}


def _idempotency(request: Request[Any, Any, Any], asked: str) -> Idempotency | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequestError(f"`Idempotency-Key` has 1 to {MAX_KEY_LENGTH} characters", param="Idempotency-Key")
    return Idempotency(key, asked)


async def _ring(bell: Bell, job: Job) -> None:
    try:
        await asyncio.to_thread(bell.ring, job.id, job.queue)
    except TesseraError as error:
        logger.warning("%s was not rung for (%s); the reaper will", job.id, error.message)
