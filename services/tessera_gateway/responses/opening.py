"""Makes the collaborators of kept responses from the settings, for the gateway and for its worker alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tessera.api.job_resources import JobResources
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import make_bell
from tessera.jobs.disk import job_disks
from tessera.jobs.store import make_job_store
from tessera.settings.tree import Settings
from tessera.wire.models import Card
from tessera_gateway.responses.background import BackgroundResponses
from tessera_gateway.responses.forwarding import counting, forwarding
from tessera_gateway.responses.keeping import Responses
from tessera_gateway.responses.store import ResponseStore
from tessera_gateway.translated.translator import Translator
from tessera_gateway.upstreams import Upstreams


def response_store(settings: Settings) -> ResponseStore:
    """The store of responses. It connects to nothing yet."""
    return ResponseStore(
        settings.redis_url,
        timeout_s=settings.redis.timeout_s,
        keep_s=settings.gateway.responses_ttl_s,
        most_bytes=settings.gateway.responses_max_bytes,
        disks=job_disks(settings),
    )


@asynccontextmanager
async def opened_responses(
    settings: Settings, upstreams: Upstreams, translator: Translator
) -> AsyncIterator[Responses]:
    """The responses of a gateway, while it serves.

    Args:
        settings: of the suite.
        upstreams: whose models there are.
        translator: reaches them.
    """
    store = response_store(settings)
    jobs = make_job_store(settings)
    bell = make_bell(settings)

    async def card(name: str | None) -> Card:
        return await upstreams.card(name, "chat")

    async def check(name: str) -> object:
        return await upstreams.model(await upstreams.resolve(name))

    resources = JobResources(jobs, make_artifact_store(settings), bell, card, settings)
    background = BackgroundResponses(store, resources, check, enabled=settings.gateway.response_workers > 0)
    try:
        yield Responses(
            store,
            background,
            forwarding(translator),
            counting(translator),
            most_bytes=settings.gateway.max_json_bytes,
        )
    finally:
        await background.close()
        await store.close()
        await jobs.close()
        bell.close()
