"""`build_app`: the same error envelope, request ids, metrics, health, readiness and API description for every service.

Does not know routes: a service passes its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import msgspec
from litestar import Litestar, Response, get
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tessera.web import docs
from tessera.web.errors import handle
from tessera.web.metrics import HTTPMetrics
from tessera.web.middleware import ObservedApp
from tessera.wire.models import Health

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]
ReadyCheck = Callable[[], Awaitable[Mapping[str, str]]]
"""Answers the state of each part; the app is ready when every value is `ok`."""


def tessera_version() -> str:
    """The installed version."""
    try:
        return version("tessera")
    except PackageNotFoundError:
        return "0+unknown"


def build_app(
    service: str,
    route_handlers: Sequence[ControllerRouterHandler],
    *,
    ready: ReadyCheck,
    registry: CollectorRegistry,
    description: str,
    lifespan: Sequence[Lifespan] = (),
    state: Mapping[str, Any] | None = None,
    max_body_bytes: int = 64 * 1024 * 1024,
    security_schemes: Mapping[str, SecurityScheme] | None = None,
) -> Litestar:
    """Make a service's app.

    Args:
        service: its name in health answers and logs.
        route_handlers: its own routes.
        ready: states of the parts it needs to answer requests.
        registry: where its metrics are registered.
        description: what the API description says about it, in Markdown.
        lifespan: context managers around serving.
        state: objects that handlers take from `state`.
        max_body_bytes: default body limit; routes may set their own.
        security_schemes: what the API description offers to authorize with; routes say which they need.
    """
    release = tessera_version()

    @get("/health", summary="Is the process alive?", tags=["operations"])
    async def health() -> Health:
        return Health(status="ok", service=service, version=release)

    @get("/ready", summary="Can it answer requests now?", tags=["operations"])
    async def readiness() -> Response[Health]:
        parts = dict(await ready())
        failed = any(part == "failed" for part in parts.values())
        fine = all(part == "ok" for part in parts.values())
        status: Literal["ok", "starting", "failed"] = "ok" if fine else "failed" if failed else "starting"
        answer = Health(status=status, service=service, version=release, parts=parts)
        return Response(answer, status_code=200 if fine else 503)

    @get("/metrics", summary="Prometheus metrics.", tags=["operations"], sync_to_thread=False)
    def metrics() -> Response[bytes]:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    http_metrics = HTTPMetrics(registry)
    app = Litestar(
        [health, readiness, metrics, docs.swagger_asset, *route_handlers],
        lifespan=list(lifespan),
        state=State(dict(state or {})),
        exception_handlers={Exception: handle},
        request_max_body_size=max_body_bytes,
        openapi_config=OpenAPIConfig(
            title=f"Tessera {service}",
            version=release,
            description=description,
            path="/docs",
            render_plugins=[docs.render_plugin()],
            components=Components(security_schemes=dict(security_schemes) if security_schemes else None),
            use_handler_docstrings=True,
        ),
        logging_config=None,
    )
    # Litestar replaces configured schemas by those it derives, so the bodies' own are added to its result.
    components = app.openapi_schema.components
    components.schemas = {**(components.schemas or {}), **docs.component_schemas()}
    docs.describe_errors(app.openapi_schema)
    # Around the router, not inside it, so that unmatched paths have a request id and are counted too.
    app.asgi_handler = ObservedApp(app.asgi_handler, http_metrics)
    return app


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A wire type as a JSON response."""
    return Response(
        msgspec.json.encode(value), status_code=status, headers=dict(headers or {}), media_type="application/json"
    )
