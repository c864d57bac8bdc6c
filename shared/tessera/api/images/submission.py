"""Accepts image jobs and waits for their end: the client waits, and nothing is left of the job afterwards.

The job is as durable as a video's: a worker that is killed costs the client time, not the images. Does not know HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from typing import TypedDict

import msgspec

from tessera.api.estimates import MARGIN, check_estimate, seconds_by_own_pace, too_long
from tessera.api.images.request import ImageOrder, cost_of_images
from tessera.api.images.view import FinishedImages, error_of
from tessera.api.job_resources import JobResources
from tessera.api.memory_check import check_memory
from tessera.errors import ConflictError, DeadlineError, NotFoundError, UnavailableError
from tessera.jobs.queues import queue_of
from tessera.telemetry import request_id_var
from tessera.wire.jobs import Job

logger = logging.getLogger(__name__)


class _TooLongTerms(TypedDict):
    what: str
    param: str
    cure: str


KEEP_S = 60.0
"""Seconds that an ended image job is kept. Images whose gateway process was killed are fetched by nobody."""
_TOO_LONG = _TooLongTerms(
    what="these images",
    param="deadline_s",
    cure="ask for fewer, smaller or quicker ones, or send a larger `deadline_s` to wait for them",
)
RETRY_REDIS_S = 0.5
"""Seconds between two attempts to reach a Redis that is down."""


class SubmittedImages:
    """An accepted image job whose end somebody waits for.

    Args:
        jobs: where it is.
        job_id: its id.
        owner: whose it is.
        order: what was asked for.
        wait_s: seconds until the job is failed if it has not ended.
    """

    def __init__(self, jobs: JobResources, job_id: str, owner: str, order: ImageOrder, wait_s: float) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._owner = owner
        self._order = order
        self._wait_s = wait_s
        self._patience_s = _patience_s(order, jobs)

    async def finished(self) -> FinishedImages:
        """The images, when the job has ended.

        Raises:
            UnprocessableError: its first steps show that it will take longer than the client waits.
            TesseraError: the job failed, was deleted, or had not ended at its deadline.
        """
        job = await self._ended()
        if job.status != "completed":
            raise error_of(job.error)
        keys = [job.artifacts[f"image-{index}"].key for index in range(self._order.job_input.count)]
        return FinishedImages(
            self._order, int(job.created_at), [await asyncio.to_thread(self._read, key) for key in keys]
        )

    async def _ended(self) -> Job:
        """The job when it has ended. A Redis that is down for a while is waited for, as workers do."""
        # The job is failed at its deadline; its worker has a lease's time to notice.
        until = time.monotonic() + self._wait_s + self._jobs.settings.jobs.lease_s
        while True:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    found = self._jobs.store.events(self._job_id, kind="image", owner=self._owner)
                    async with contextlib.aclosing(found) as events:
                        async for happened, job in events:
                            if happened.last and job.ended_at is not None:
                                return job
                            takes_s = seconds_by_own_pace(job, happened.progress)
                            if takes_s is not None and takes_s > self._patience_s * MARGIN:
                                raise too_long(takes_s, self._patience_s, **_TOO_LONG)
                    raise _deleted()
            except NotFoundError as error:
                raise _deleted() from error
            except TimeoutError as error:
                raise DeadlineError(
                    f"the images were not ready after {self._wait_s:g} s; ask for fewer or smaller"
                ) from error
            except UnavailableError:
                if time.monotonic() + RETRY_REDIS_S > until:
                    raise
                await asyncio.sleep(RETRY_REDIS_S)

    def _read(self, key: str) -> str:
        with self._jobs.artifacts.open(key) as file:
            return base64.b64encode(file.read()).decode()


@contextlib.asynccontextmanager
async def submitted(jobs: JobResources, owner: str, order: ImageOrder) -> AsyncIterator[SubmittedImages]:
    """An accepted image job. When the context is left, the job is deleted, which stops a worker that has it.

    Raises:
        InvalidRequestError: no worker has the memory for such images.
        UnprocessableError: they are estimated to take longer than the client waits.
        TesseraError: as `AsyncJobStore.create`.
    """
    check_memory(order.job_input, order.card)
    settings, request = jobs.settings.video, order.request
    job_id = f"image_{uuid.uuid4().hex}"
    wait_s = min(request.deadline_s or settings.image_wait_s, settings.image_wait_s)
    created = await jobs.store.create(
        job_id,
        kind="image",
        owner=owner,
        queue=queue_of(order.card.id),
        job_input=msgspec.structs.replace(order.job_input, request_id=request_id_var.get()),
        cost=cost_of_images(order.job_input),
        priority=request.priority,
        deadline_s=wait_s,
        keep_s=KEEP_S,
    )
    try:
        check_estimate(created.job, _patience_s(order, jobs), **_TOO_LONG)
        await jobs.ring(created.job)
        yield SubmittedImages(jobs, job_id, owner, order, wait_s)
    finally:
        await _delete(jobs, job_id, owner)


def _patience_s(order: ImageOrder, jobs: JobResources) -> float:
    """Seconds that the client waits: what it says, or what is assumed of one who says nothing."""
    settings = jobs.settings.video
    return min(order.request.deadline_s or settings.image_patience_s, settings.image_wait_s)


async def _delete(jobs: JobResources, job_id: str, owner: str) -> None:
    """Delete the job, which stops the worker that has it, and its files."""
    try:
        with contextlib.suppress(NotFoundError):
            await jobs.store.delete(job_id, kind="image", owner=owner)
    except UnavailableError as error:
        logger.warning("%s is kept until it expires: %s", job_id, error.message)
    else:
        await jobs.remove_files(job_id)


def _deleted() -> ConflictError:
    return ConflictError("the images were deleted while they were made", code="cancelled")
