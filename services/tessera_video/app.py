"""The video service: takes jobs, shows them, hands out files. Torch-free; workers make the videos.

Does not know which worker does what: the records in Redis do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.api.job_maintenance import maintain_jobs
from tessera.api.mounting import mount_videos
from tessera.errors import UnavailableError
from tessera.jobs.records import Counts
from tessera.jobs.store import make_job_store
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.dependencies import provide
from tessera.web.metrics import ReportedMetrics
from tessera.web.sites import sites_of
from tessera.wire.models import Card
from tessera_video.catalog import Catalog
from tessera_video.routes import routes

DESCRIPTION = """Videos from text (and from a first frame, where the model takes one), as durable jobs.

`POST /v1/videos` answers at once; poll `GET /v1/videos/{id}` until it is `completed`, then fetch `/content`."""
"""Description of the service in its OpenAPI document."""


def create_app(settings: Settings) -> Litestar:
    """Make the app. When it begins to serve, it starts the reaper and the refresh of the workers."""
    registry = CollectorRegistry()
    metrics = ReportedMetrics(registry, "tessera_jobs")
    worker_store = make_job_store(settings)
    catalog = Catalog(settings, worker_store)

    async def card_of(name: str | None) -> Card:
        return await catalog.card(name)

    def on_counts(counts: Counts) -> None:
        metrics.update(
            {
                "queued": counts.queued,
                "in_progress": counts.in_progress,
                "ended": counts.ended,
                "video_workers": len(catalog.workers),
            }
        )

    videos = mount_videos(settings, card_of)

    async def ready() -> Mapping[str, str]:
        parts = dict(await videos.ready())
        try:
            await catalog.refresh()
        except UnavailableError:
            return {**parts, "worker": "starting"}
        return {**parts, "worker": "ok" if catalog.has_worker() else "starting"}

    @asynccontextmanager
    async def close_worker_store(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await worker_store.close()

    return build_app(
        "video",
        routes(videos),
        ready=ready,
        registry=registry,
        description=DESCRIPTION,
        lifespan=[*videos.lifespan, maintain_jobs(settings, on_counts=on_counts), close_worker_store, catalog.lifespan],
        dependencies={"models": provide(catalog.models)},
        sites=sites_of(settings),
        http=settings.http,
    )
