"""The video service: takes jobs, shows them, hands out files. Torch-free; workers make the videos.

Does not know which worker does what: the records in Redis do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.errors import UnavailableError
from tessera.jobs import video_routes
from tessera.jobs.artifact_places import make_artifacts
from tessera.jobs.celery_app import make_bell
from tessera.jobs.reaper import Reaper
from tessera.jobs.records import Counts
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.webhooks import Webhooks
from tessera.jobs.worker_store import WorkerStore
from tessera.settings import Settings
from tessera.web.app import build_app
from tessera.web.metrics import NamedGauges
from tessera.wire.models import Card
from tessera_video.catalog import Catalog
from tessera_video.routes import routes

DESCRIPTION = """Videos from text (and from a first frame, where the model takes one), as durable jobs.

`POST /v1/videos` answers at once; poll `GET /v1/videos/{id}` until it is `completed`, then fetch `/content`."""


def create_app(settings: Settings) -> Litestar:
    """Make the app. Starts its reaper and its look for workers when it begins to serve."""
    registry = CollectorRegistry()
    gauges = NamedGauges(registry, "tessera_jobs")
    looking = AsyncJobStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    catalog = Catalog(settings, looking)

    async def card_of(name: str | None) -> Card:
        return await catalog.card(name)

    def on_counts(counts: Counts) -> None:
        gauges.update(
            {
                "queued": counts.queued,
                "in_progress": counts.in_progress,
                "ended": counts.ended,
                "video_workers": len(catalog.workers),
            }
        )

    videos = video_routes.mount(settings, card_of)

    async def ready() -> Mapping[str, str]:
        parts = dict(await videos.ready())
        try:
            await catalog.refresh()
        except UnavailableError:
            return {**parts, "worker": "starting"}
        return {**parts, "worker": "ok" if catalog.has_worker() else "starting"}

    @asynccontextmanager
    async def reaping(_: Litestar) -> AsyncIterator[None]:
        store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
        bell = make_bell(settings)
        reaper = Reaper(store, make_artifacts(settings), bell, on_counts=on_counts)
        reaper.start()
        webhooks = Webhooks(looking, settings.webhooks)
        webhooks.start()
        try:
            yield
        finally:
            await webhooks.close()
            await asyncio.to_thread(reaper.close)
            bell.close()
            store.close()
            await looking.close()

    return build_app(
        "video",
        routes(videos),
        ready=ready,
        registry=registry,
        description=DESCRIPTION,
        lifespan=[*videos.lifespan, reaping, catalog.lifespan],
        state={**videos.state, "models": catalog.models},
    )
