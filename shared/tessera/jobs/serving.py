"""What the routes of videos and of images share: the store, the files, the bell, and whose request it is.

Does not know routes: see `video_routes` and `image_routes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Request

from tessera.errors import TesseraError, UnavailableError
from tessera.jobs.artifacts import ArtifactStore
from tessera.jobs.celery_app import Bell
from tessera.jobs.store import AsyncJobStore
from tessera.settings import Settings
from tessera.wire.jobs import Job
from tessera.wire.models import Card

logger = logging.getLogger(__name__)

Cards = Callable[[str | None], Awaitable[Card]]
"""The card of a video model by its name (None: the default one). Raises `ModelNotFoundError` or `UnavailableError`."""


@dataclass(frozen=True)
class VideoJobs:
    """What the routes work with: `state.videos` of the app."""

    store: AsyncJobStore
    artifacts: ArtifactStore
    bell: Bell
    cards: Cards
    settings: Settings


def owner_of(request: Request[Any, Any, Any]) -> str:
    """Whose jobs a request may see."""
    return str(request.scope.get("tessera.owner", "anonymous"))


def queue_of(model: str) -> str:
    """The queue that the workers of a video model listen to."""
    return f"video.{model}"


async def remove_files(jobs: VideoJobs, job_id: str) -> None:
    """Remove what belongs to a job that is not there any more. A store that is down does so when they are stale."""
    try:
        await asyncio.to_thread(jobs.artifacts.remove, job_id)
    except UnavailableError as error:
        logger.warning("the files of %s stay until they are stale: %s", job_id, error.message)


async def ring(bell: Bell, job: Job) -> None:
    """Tell a worker of a new job; a bell that is broken is no error, because the reaper rings too."""
    try:
        await asyncio.to_thread(bell.ring, job.id, job.queue)
    except TesseraError as error:
        logger.warning("%s was not rung for (%s); the reaper will", job.id, error.message)
