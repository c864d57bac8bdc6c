"""`POST /v1/images/generations` as OpenAI has it: a job as durable as a video's, whose end the client waits for.

A worker that is killed costs the client time, not the images. Who leaves cancels the job; what was handed out is
forgotten. Does not know who makes the images.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Mapping

from litestar import Response, post
from litestar.datastructures import State

from tessera.api.images.request import cost_of_images, make_image_input, quality_of
from tessera.api.job_resources import JobResources, owner_of, remove_files, ring
from tessera.api.memory_check import check_memory
from tessera.errors import (
    ConflictError,
    DeadlineError,
    EngineDiedError,
    InternalError,
    NotFoundError,
    TesseraError,
    UnavailableError,
    UnsupportedMediaError,
    all_errors,
)
from tessera.jobs.queues import queue_of
from tessera.telemetry import request_id_var
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.images import Image, ImageGenerationRequest, ImagesResponse
from tessera.wire.jobs import ImageInput, Job, JobError

logger = logging.getLogger(__name__)

KEEP_S = 60.0
"""Images that were made for a process that was killed are fetched by nobody: they end so soon after their job."""
AGAIN_S = 0.5
"""Between two looks at a Redis that is down."""
_OF_JOBS: Mapping[str | None, type[TesseraError]] = {
    "cancelled": ConflictError,
    "out_of_memory": UnavailableError,
    "worker_died": EngineDiedError,
}
"""What codes that only jobs have mean to who waits."""


@post(
    "/v1/images/generations",
    status_code=200,
    summary="Make images from a text.",
    tags=["images"],
    operation_class=documented(ImageGenerationRequest),
)
async def generate_images(request: HTTPRequest, state: State) -> Response[ImagesResponse]:
    """Waits for the images: single frames of the video model. A client that leaves stops the work at its next step."""
    jobs: JobResources = state.videos
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaError(f"content-type {kind or '(none)'!r} is not supported here; send application/json")
    asked = decode_json(await request.body(), ImageGenerationRequest)
    card = await jobs.cards(asked.model)
    settings = jobs.settings.video
    job_input = make_image_input(asked, card, settings, request_id=request_id_var.get())
    check_memory(job_input, card)
    job_id, owner = f"image_{uuid.uuid4().hex}", owner_of(request)
    wait_s = min(asked.deadline_s or settings.image_wait_s, settings.image_wait_s)
    created = await jobs.store.create(
        job_id,
        kind="image",
        owner=owner,
        queue=queue_of(card.id),
        job_input=job_input,
        cost=cost_of_images(job_input),
        priority=asked.priority,
        deadline_s=wait_s,
        keep_s=KEEP_S,
    )
    try:
        await ring(jobs.bell, created.job)
        job, images = await unless_client_leaves(request, _made(jobs, job_id, owner, job_input, wait_s))
    finally:
        await _forget(jobs, job_id, owner)
    answer = ImagesResponse(
        created=int(job.created_at),
        data=images,
        background="opaque",
        output_format=job_input.output_format,
        quality=quality_of(asked),
        size=f"{job_input.width}x{job_input.height}",
    )
    return json_response(answer)


async def _made(
    jobs: JobResources, job_id: str, owner: str, given: ImageInput, wait_s: float
) -> tuple[Job, list[Image]]:
    """The ended job and its images.

    Raises:
        TesseraError: what became of it otherwise.
    """
    job = await _ended(jobs, job_id, owner, wait_s)
    if job.status != "completed":
        raise _error_of(job.error)
    data = [await asyncio.to_thread(_read, jobs, job.artifacts[f"image-{index}"].key) for index in range(given.count)]
    return job, [Image(b64_json=encoded, seed=given.seed + index) for index, encoded in enumerate(data)]


async def _ended(jobs: JobResources, job_id: str, owner: str, wait_s: float) -> Job:
    """The job when it has ended. A Redis that is down for a while is waited for: workers do so, too."""
    # The job is failed at its deadline; its worker has a lease's time to hear of that.
    until = time.monotonic() + wait_s + jobs.settings.jobs.lease_s
    while True:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                async with contextlib.aclosing(jobs.store.events(job_id, kind="image", owner=owner)) as events:
                    async for happened, job in events:
                        if happened.last and job.ended_at is not None:
                            return job
                raise _deleted()
        except NotFoundError as error:
            raise _deleted() from error
        except TimeoutError as error:
            raise DeadlineError(f"the images were not ready after {wait_s:g} s; ask for fewer or smaller") from error
        except UnavailableError:
            if time.monotonic() + AGAIN_S > until:
                raise
            await asyncio.sleep(AGAIN_S)


def _deleted() -> ConflictError:
    return ConflictError("the images were deleted while they were made", code="cancelled")


def _read(jobs: JobResources, key: str) -> str:
    with jobs.artifacts.open(key) as file:
        return base64.b64encode(file.read()).decode()


async def _forget(jobs: JobResources, job_id: str, owner: str) -> None:
    """Delete the job, which stops who works on it, and its files."""
    try:
        with contextlib.suppress(NotFoundError):
            await jobs.store.delete(job_id, kind="image", owner=owner)
    except UnavailableError as error:
        logger.warning("%s is kept until it expires: %s", job_id, error.message)
    else:
        await remove_files(jobs, job_id)


def _error_of(error: JobError | None) -> TesseraError:
    """What a failed job means for who waits for it."""
    if error is None:
        return InternalError("the images could not be made")
    known = {**{kind.code: kind for kind in reversed(all_errors())}, **_OF_JOBS}
    return known.get(error.code, InternalError)(error.message, code=error.code)
