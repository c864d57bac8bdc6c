"""What an HTTP service of jobs does beside answering: a reaper, and webhooks. Any number of services may do it at once.

Does not know what jobs do.
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
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.webhooks import Webhooks
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.tree import Settings
from tessera.web.app import Lifespan


def maintain_jobs(settings: Settings, *, on_counts: Callable[[Counts], None] = lambda _: None) -> Lifespan:
    """The lifespan of an app that keeps jobs.

    Args:
        settings: of the suite.
        on_counts: told how many jobs there are, every few seconds.
    """

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
        told = AsyncJobStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
        bell = make_bell(settings)
        reaper = Reaper(store, make_artifact_store(settings), bell, on_counts=on_counts)
        reaper.start()
        webhooks = Webhooks(told, settings.webhooks)
        webhooks.start()
        try:
            yield
        finally:
            await webhooks.close()
            await asyncio.to_thread(reaper.close)
            bell.close()
            store.close()
            await told.close()

    return lifespan
