"""Runs a reaper and the delivery of webhooks beside the routes of an HTTP service.

Any number of services may run them at once. Does not know what jobs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from litestar import Litestar

from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import make_bell
from tessera.jobs.reaper import Reaper
from tessera.jobs.records import Counts
from tessera.jobs.store import make_job_store
from tessera.jobs.webhooks import Webhooks
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.tree import Settings
from tessera.web.app import Lifespan


def maintain_jobs(settings: Settings, *, on_counts: Callable[[Counts], None] = lambda _: None) -> Lifespan:
    """The lifespan of an app that reaps jobs and delivers their webhooks while it serves.

    Args:
        settings: of the suite.
        on_counts: called with the number of jobs in each state, every few seconds.
    """

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        reaper_store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
        webhook_store = make_job_store(settings)
        bell = make_bell(settings)
        reaper = Reaper(reaper_store, make_artifact_store(settings), bell, on_counts=on_counts)
        reaper.start()
        webhooks = Webhooks(webhook_store, settings.webhooks)
        webhooks.start()
        try:
            yield
        finally:
            await webhooks.close()
            await asyncio.to_thread(reaper.close)
            bell.close()
            reaper_store.close()
            await webhook_store.close()

    return lifespan
