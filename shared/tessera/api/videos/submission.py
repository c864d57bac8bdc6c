"""Accepts video jobs: memory check, first frame stored, record written, worker rung for.

The one path for new videos, remixes and extensions. Whatever goes wrong leaves neither a record nor a file. Does not
know HTTP.
"""

from __future__ import annotations

import asyncio
import uuid

import msgspec

from tessera.api.estimates import check_estimate
from tessera.api.job_resources import JobResources, NewJob
from tessera.api.memory_check import check_memory
from tessera.api.videos.first_frame import InputFile, type_of_image
from tessera.api.videos.request import StoredFile, VideoOrder, cost_of
from tessera.api.videos.step_caches import check_step_cache
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.queues import queue_of
from tessera.jobs.records import Created
from tessera.jobs.store import Idempotency
from tessera.jobs.webhooks import checked_webhook
from tessera.settings.video import VideoSettings
from tessera.telemetry import request_id_var
from tessera.wire.jobs import Job


async def submit(jobs: JobResources, owner: str, order: VideoOrder, idempotency: Idempotency | None) -> Created:
    """Accept a job, or find the one that an idempotency key stands for.

    Raises:
        InvalidRequestError: no worker has the memory for such a clip, the model has not its step cache, or nothing may
            be sent to its webhook.
        UnprocessableError: it is estimated to take longer than its deadline, or than clips may take here.
        NotFoundError: the file that the video begins with is not there any more.
        TesseraError: as `AsyncJobStore.create` and `ArtifactStore.put`.
    """
    request = order.request
    check_memory(order.job_input, order.card)
    check_step_cache(order.job_input, order.card)
    webhook = checked_webhook(request.webhook_url, jobs.settings.webhooks)
    job_id = f"video_{uuid.uuid4().hex}"
    image = f"{job_id}/input" if order.begins_with is not None else None
    if order.begins_with is not None:
        await asyncio.to_thread(_store_input, jobs.artifacts, f"{job_id}/input", order.begins_with)
    job_input = msgspec.structs.replace(order.job_input, image=image, request_id=request_id_var.get())
    return await jobs.accept(
        NewJob(
            id=job_id,
            kind="video",
            owner=owner,
            queue=queue_of(job_input.model),
            job_input=job_input,
            cost=cost_of(job_input),
            idempotency=idempotency,
            priority=request.priority,
            deadline_s=request.deadline_s,
            webhook=webhook,
        ),
        lambda job: _check_time(job, request.deadline_s, jobs.settings.video),
    )


def _check_time(job: Job, deadline_s: float | None, settings: VideoSettings) -> None:
    """Refuse a clip that is estimated to be late for its client; or, if the client has not said how long it waits, to
    take this server too long, however long the queue is."""
    if deadline_s is not None:
        cure = "ask for a smaller, shorter or quicker clip, or for a later time"
        check_estimate(job, deadline_s, what="this clip", param="deadline_s", cure=cure)
    elif settings.max_estimated_s:
        cure = "ask for a smaller, shorter or quicker clip, or send the seconds that you wait as `deadline_s`"
        most_s = settings.max_estimated_s
        check_estimate(job, most_s, what="this clip", param="deadline_s", cure=cure, queued=False)


def _store_input(artifacts: ArtifactStore, key: str, begins_with: InputFile | StoredFile) -> None:
    if isinstance(begins_with, StoredFile):
        with artifacts.open(begins_with.key) as file:
            data = file.read()
        begins_with = InputFile(data, begins_with.content_type or type_of_image(data))
    artifacts.put(key, begins_with.data, begins_with.content_type)
