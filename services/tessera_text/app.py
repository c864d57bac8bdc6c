"""The text service's app: its engine, its routes and its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.engine.host import EngineHost
from tessera.language.attachments.reading import open_attachments
from tessera.language.metrics import GenerationMetrics
from tessera.language.pinning import pin
from tessera.protocols.error_shapes import shape_of
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.dependencies import Opened, provide
from tessera.web.sites import sites_of
from tessera_text.encoders.service import Encoders, listed
from tessera_text.pipeline import TextTools, build_tools
from tessera_text.routes import ROUTES


def create_app(settings: Settings) -> Litestar:
    """Make the app. Its engines start and end with it."""
    registry = CollectorRegistry()
    attachments = Opened(lambda: open_attachments(settings))
    metrics = GenerationMetrics(registry)
    host: EngineHost[TextTools] = EngineHost(
        "text",
        "tessera_text.worker",
        registry,
        lambda ready, engine: build_tools(ready, engine, metrics, settings.text, attachments.value),
        lambda tools: pin(host.engine, tools.pinned),
    )
    encoders = Encoders(settings.text, registry)

    async def ready() -> Mapping[str, str]:
        return {**await host.states(), **await encoders.states()}

    return build_app(
        "text",
        ROUTES,
        ready=ready,
        registry=registry,
        description="Language models: chat completions, completions and embeddings with OpenAI's shapes. "
        "Encoders: embeddings, reranking, scores, classes and moderations.",
        lifespan=[attachments.lifespan, host.lifespan, encoders.lifespan],
        dependencies={
            "host": provide(host),
            "models": provide(lambda: listed(host.models(), encoders)),
            "encoders": provide(encoders),
        },
        max_body_bytes=settings.gateway.max_json_bytes,
        shape_of=shape_of,
        sites=sites_of(settings),
        http=settings.http,
    )
