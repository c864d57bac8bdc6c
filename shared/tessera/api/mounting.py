"""Makes the job routes of an app together with their collaborators: `mount_videos`, `mount_transcriptions`.

Each app mounts a resource once and passes on what it gets: the routes and their lifespan to `build_app`, the readiness
to its own. Connects to nothing yet, and works again by itself after Redis was down. Does not know which app it is for,
who makes a video, or which keys there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from litestar import Litestar, Router
from litestar.types import ControllerRouterHandler

from tessera.api.images.routes import generate_images
from tessera.api.job_resources import Cards, JobResources
from tessera.api.transcriptions.routes import TranscriptionsController
from tessera.api.videos.routes import VideosController
from tessera.errors import TesseraError
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import make_bell
from tessera.jobs.store import make_job_store
from tessera.settings.tree import Settings
from tessera.web.app import Lifespan, ReadyCheck
from tessera.web.dependencies import provide

VIDEO_FORM_BYTES = 256 * 1024
"""Bytes that a body of `/v1/videos` may have beside its image."""


@dataclass(frozen=True)
class MountedRoutes:
    """The routes of a resource and what an app does with them."""

    route_handlers: list[ControllerRouterHandler]
    resources: JobResources
    """The collaborators of the routes, for the app's own routes that accept jobs."""
    lifespan: list[Lifespan]
    """Closes the connections when the app ends."""
    ready: ReadyCheck
    """States of the parts that the routes need: `{"redis": …}`."""


def mount_videos(settings: Settings, cards: Cards) -> MountedRoutes:
    """The routes of videos and of images, which the same workers make.

    Args:
        settings: of the suite.
        cards: how this app finds the card of a video model.
    """
    # A data URL is a third longer than the image.
    body_limit = settings.video.max_image_bytes * 4 // 3 + VIDEO_FORM_BYTES
    return _mount([VideosController, generate_images], settings, cards, body_limit)


def mount_transcriptions(settings: Settings, cards: Cards) -> MountedRoutes:
    """The routes of transcription jobs; `POST /v1/audio/transcriptions`, which accepts them, is each app's own.

    Args:
        settings: of the suite.
        cards: how this app finds the card of a transcription model.
    """
    return _mount([TranscriptionsController], settings, cards, None)


def _mount(
    handlers: list[ControllerRouterHandler], settings: Settings, cards: Cards, body_limit: int | None
) -> MountedRoutes:
    store = make_job_store(settings)
    bell = make_bell(settings)
    resources = JobResources(store, make_artifact_store(settings), bell, cards, settings)

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

    dependencies = {"jobs": provide(resources)}
    if body_limit is None:
        router = Router("/", route_handlers=handlers, dependencies=dependencies)
    else:
        router = Router("/", route_handlers=handlers, dependencies=dependencies, request_max_body_size=body_limit)
    return MountedRoutes([router], resources, [lifespan], ready)
