"""The text service's app: its engine, its routes and its metrics."""

from __future__ import annotations

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.engine.host import EngineHost
from tessera.language.attachments.reading import open_attachments
from tessera.language.metrics import GenerationMetrics
from tessera.language.pinning import pin
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.web.dependencies import Opened, provide
from tessera.web.sites import sites_of
from tessera_text.pipeline import TextTools, build_tools
from tessera_text.routes import ROUTES


def create_app(settings: Settings) -> Litestar:
    """Make the app. Its engine starts and ends with it."""
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

    return build_app(
        "text",
        ROUTES,
        ready=host.states,
        registry=registry,
        description="Language models: chat completions, completions and embeddings with OpenAI's shapes.",
        lifespan=[attachments.lifespan, host.lifespan],
        dependencies={"host": provide(host), "models": provide(host.models)},
        max_body_bytes=settings.gateway.max_json_bytes,
        sites=sites_of(settings),
        http=settings.http,
    )
