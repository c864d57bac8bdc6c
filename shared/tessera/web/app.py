"""`build_app`: the same error envelope, request ids, metrics, health, readiness and API description for every service.

A service passes its own routes, and its collaborators as `dependencies`. `tessera.web.dependencies` says how handlers
get them, `tessera.web.docs` how their answers are described. Knows no route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from litestar import Litestar, MediaType, Response, get
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tessera.settings.http import HttpSettings
from tessera.web import docs
from tessera.web.bodies.budget import BodyBudget, BudgetedApp
from tessera.web.draining import draining
from tessera.web.early import AnyEarlyAnswers, FrontDoor
from tessera.web.errors import ShapeOf, handle_in_shape, openai_shape
from tessera.web.metrics import HTTPMetrics
from tessera.web.middleware import ObservedApp
from tessera.web.sites import GuardedApp, Sites
from tessera.wire.models import Health, ReadyStatus

T = TypeVar("T")

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]
ReadyCheck = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the state of each part; the app is ready when every value is `ok`."""


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
    dependencies: Mapping[str, Provide] | None = None,
    max_body_bytes: int = 64 * 1024 * 1024,
    security_schemes: Mapping[str, SecurityScheme] | None = None,
    sites: Sites | None = None,
    shape_of: ShapeOf = lambda _: openai_shape,
    http: HttpSettings | None = None,
    early: AnyEarlyAnswers | None = None,
) -> Litestar:
    """Make a service's app.

    Args:
        service: name of the service in health responses and logs.
        route_handlers: the service's own routes.
        ready: states of the parts that the service needs to answer requests.
        registry: where the service's metrics are registered.
        description: what the API description says about the service, in Markdown.
        lifespan: context managers that are open while the app serves, entered in this order.
        dependencies: the collaborators that handlers take as typed parameters, by name.
        max_body_bytes: most bytes of a body, where a route does not set its own limit.
        security_schemes: ways to authorize, for the API description; each route names the one that it needs.
        early: answers some requests before the app, if the app is served by `tessera.web.serve`.
        sites: names of the server, and pages that may use it; None knows local names and no other pages.
        shape_of: the envelope of a request's errors; OpenAI's unless the app has routes of other protocols.
        http: how much memory bodies may hold; None takes the defaults.
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
        status: ReadyStatus = "ok" if fine else "failed" if failed else "starting"
        if draining().began:
            status = "draining"
        answer = Health(status=status, service=service, version=release, parts=parts)
        return Response(answer, status_code=200 if status == "ok" else 503)

    @get(
        "/metrics",
        summary="Prometheus metrics.",
        tags=["operations"],
        sync_to_thread=False,
        operation_class=docs.documented(files=["text/plain"]),
    )
    def metrics() -> Response[bytes]:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    http_metrics = HTTPMetrics(registry)
    app = Litestar(
        [health, readiness, metrics, docs.swagger_asset, *route_handlers],
        lifespan=list(lifespan),
        dependencies=dict(dependencies or {}),
        exception_handlers={Exception: handle_in_shape},
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
    # Litestar replaces configured schemas by those it derives, so those of declared types are added to its result.
    components = app.openapi_schema.components
    components.schemas = {**(components.schemas or {}), **docs.component_schemas(app.openapi_schema)}
    docs.describe_errors(app.openapi_schema)
    budget = BodyBudget((http or HttpSettings()).body_memory_bytes, registry)
    sites = sites or Sites()
    # Around the router, not inside it, so that unmatched paths have a request id and are counted too.
    app.asgi_handler = ObservedApp(GuardedApp(BudgetedApp(app.asgi_handler, budget), sites), http_metrics, shape_of)
    if early is not None:
        early.behind(FrontDoor(http_metrics, sites, budget))
        app.state["early"] = early
    return app


def json_response(value: T, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[T]:
    """A wire type as a JSON response whose type the API description shows."""
    return Response(value, status_code=status, headers=dict(headers or {}), media_type=MediaType.JSON)
