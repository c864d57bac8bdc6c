"""What the routes of videos, images and long recordings share: the store, the files, the bell, and whose request it is.

Does not know routes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from litestar import Litestar
from litestar.types import ControllerRouterHandler

from tessera.errors import InvalidRequestError, TesseraError, UnavailableError
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.bell import Bell, make_bell
from tessera.jobs.store import AsyncJobStore, Idempotency
from tessera.settings.tree import Settings
from tessera.web.app import Lifespan, ReadyCheck
from tessera.web.dependencies import HTTPRequest
from tessera.wire.jobs import Job
from tessera.wire.models import Card

logger = logging.getLogger(__name__)

Cards = Callable[[str | None], Awaitable[Card]]
"""The card of a model of a kind by its name (None: the default one). Raises `ModelNotFoundError` or
`UnavailableError`."""
POLL_AFTER_MS = 500
MAX_KEY_LENGTH = 255
_EVENT_ID = re.compile(r"^[0-9]{1,20}-[0-9]{1,20}$")


@dataclass(frozen=True)
class JobResources:
    """What the routes work with: `state.videos` of the app, or `state.transcriptions`."""

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


def mount_routes(name: str, route_handlers: list[ControllerRouterHandler], settings: Settings, cards: Cards) -> Mounted:
    """Routes and what they work with, which handlers find as `state.<name>`. Connects to nothing yet."""
    store = AsyncJobStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    bell = make_bell(settings)
    jobs = JobResources(store, make_artifact_store(settings), bell, cards, settings)

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

    return Mounted(route_handlers, [lifespan], {name: jobs}, ready)


def owner_of(request: HTTPRequest) -> str:
    """Whose jobs a request may see."""
    return str(request.scope.get("tessera.owner", "anonymous"))


async def remove_files(jobs: JobResources, job_id: str) -> None:
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


def poll_headers(job: Job) -> dict[str, str]:
    """When to ask again for a job, as OpenAI's SDK reads it."""
    return {"openai-poll-after-ms": str(POLL_AFTER_MS)} if job.status in ("queued", "in_progress") else {}


def idempotency_of(request: HTTPRequest, asked: str) -> Idempotency | None:
    """The request's `Idempotency-Key` with a hash of what it asks for.

    Raises:
        InvalidRequestError: it is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequestError(f"`Idempotency-Key` has 1 to {MAX_KEY_LENGTH} characters", param="Idempotency-Key")
    return Idempotency(key, asked)


def event_before(request: HTTPRequest) -> str:
    """The id of the event behind which a stream goes on; empty for its beginning.

    Raises:
        InvalidRequestError: `Last-Event-ID` is none.
    """
    after = request.headers.get("last-event-id", "")
    if after and not _EVENT_ID.match(after):
        raise InvalidRequestError("`Last-Event-ID` is no id of an event of this stream", param="Last-Event-ID")
    return after


def rounded_seconds(seconds: float | None) -> int | None:
    """A time as the wire has it."""
    return None if seconds is None else round(seconds)
