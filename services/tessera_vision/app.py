"""The vision service's app: its engine, what prepares its images, its routes and its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.engine.host import EngineHost
from tessera.language.attachments.reading import open_attachments
from tessera.language.metrics import GenerationMetrics
from tessera.protocols.error_shapes import shape_of
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.dependencies import Opened, provide
from tessera.web.sites import sites_of
from tessera_vision.image_processes import ImageProcesses
from tessera_vision.pipeline import PREPARED, VisionTools, build_tools
from tessera_vision.routes import ROUTES


def create_app(settings: Settings) -> Litestar:
    """Make the app. Its engine, and the processes and threads that prepare images, start and end with it."""
    registry = CollectorRegistry()
    attachments = Opened(lambda: open_attachments(settings))
    pool = ThreadPoolExecutor(max_workers=PREPARED, thread_name_prefix="preprocess")
    processes = ImageProcesses(settings.vision)
    metrics = GenerationMetrics(registry)
    host: EngineHost[VisionTools] = EngineHost(
        "vision",
        "tessera_vision.worker",
        registry,
        lambda ready, engine: build_tools(ready, engine, metrics, settings.vision, pool, attachments.value, processes),
    )

    @asynccontextmanager
    async def preprocessing(_: Litestar) -> AsyncIterator[None]:
        processes.start()
        yield
        processes.close()
        pool.shutdown(wait=False, cancel_futures=True)

    return build_app(
        "vision",
        ROUTES,
        ready=host.states,
        registry=registry,
        description="Vision-language models: chat completions with images by data URL, with OpenAI's shapes.",
        lifespan=[attachments.lifespan, preprocessing, host.lifespan],
        dependencies={"host": provide(host), "models": provide(host.models)},
        max_body_bytes=settings.gateway.max_body_bytes,
        shape_of=shape_of,
        sites=sites_of(settings),
        http=settings.http,
    )
