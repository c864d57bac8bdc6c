"""How a video job is accepted: its first frame is stored, then its record is written, then somebody rings.

Whatever goes wrong leaves neither a record nor a file. Does not know HTTP.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tessera.api.job_resources import JobResources, remove_files, ring
from tessera.api.videos.request import ImageUpload, cost_of
from tessera.errors import TesseraError
from tessera.jobs.queues import queue_of
from tessera.jobs.records import Created
from tessera.jobs.store import Idempotency
from tessera.jobs.webhooks import checked_webhook
from tessera.wire.jobs import VideoInput
from tessera.wire.videos import VideoCreateRequest, VideoExtendRequest, VideoRemixRequest


@dataclass(frozen=True)
class Submission:
    """A job that is about to be accepted; `job_input.image` is the key of `image` where there is one."""

    job_id: str
    job_input: VideoInput
    asked: VideoCreateRequest | VideoExtendRequest | VideoRemixRequest
    idempotency: Idempotency | None
    image: ImageUpload | None


async def submit(jobs: JobResources, owner: str, submission: Submission) -> Created:
    """Accept a job, or find the one that an idempotency key stands for.

    Raises:
        InvalidRequestError: its webhook is not to be told.
        TesseraError: as `AsyncJobStore.create` and `ArtifactStore.put`.
    """
    asked, job_id, image = submission.asked, submission.job_id, submission.image
    webhook = checked_webhook(asked.webhook_url, jobs.settings.webhooks)
    if image is not None:
        await asyncio.to_thread(jobs.artifacts.put, f"{job_id}/input", image.data, image.content_type)
    try:
        created = await jobs.store.create(
            job_id,
            kind="video",
            owner=owner,
            queue=queue_of(submission.job_input.model),
            job_input=submission.job_input,
            idempotency=submission.idempotency,
            cost=cost_of(submission.job_input),
            priority=asked.priority,
            deadline_s=asked.deadline_s,
            webhook=webhook,
        )
    except TesseraError:
        await remove_files(jobs, job_id)
        raise
    if created.replayed:
        await remove_files(jobs, job_id)
    else:
        await ring(jobs.bell, created.job)
    return created
