"""Request ids, tenants, access log, HTTP metrics and the shape of errors: one ASGI middleware around every route.

Knows no route. Label values are route templates, never raw paths, so their number is bounded.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Awaitable

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tessera.telemetry import log_request, request_id_var
from tessera.web.errors import ShapeOf, note_shape
from tessera.web.metrics import HTTPMetrics
from tessera.web.tenant import tenant_from, tenant_var

logger = logging.getLogger("tessera.access")

_SAFE_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")
_QUIET = frozenset({"/health", "/ready", "/metrics"})


def request_id_from(scope: Scope) -> str:
    """The client's `x-request-id` if it is short and plain, else a new id."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and (given := safe_request_id(value)):
            return given
    return new_request_id()


def safe_request_id(value: bytes) -> str:
    """The value of an `x-request-id` header if it is short and plain, else nothing."""
    return value.decode() if _SAFE_ID.match(value) else ""


def new_request_id() -> str:
    """128 bits of a generator that is seeded once: no system call. An id is not a secret, and opens nothing."""
    return f"req_{random.getrandbits(128):032x}"


class ObservedApp:
    """Wraps an ASGI app: sets the request id for logs and the response, counts and times each request.

    Args:
        app: the app.
        metrics: where requests are counted.
        shape_of: how the errors of a request are written, in this app and around it.
    """

    def __init__(self, app: ASGIApp, metrics: HTTPMetrics, shape_of: ShapeOf) -> None:
        self.app = app
        self.metrics = metrics
        self.shape_of = shape_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        note_shape(scope, self.shape_of)
        request_id = request_id_from(scope)
        token, tenant = request_id_var.set(request_id), tenant_var.set(tenant_from(scope))
        started = time.perf_counter()
        status = 500

        def send_with_id(message: Message) -> Awaitable[None]:
            # Not a coroutine: what follows the head of a response passes without a frame of its own.
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
            return send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            route = scope.get("path_template") or "unmatched"
            self.metrics.in_flight -= 1
            self.metrics.requests.add((scope["method"], route), status, seconds)
            if route not in _QUIET:
                log_request(logger, "%s %s %d %.0f ms", scope["method"], scope["path"], status, seconds * 1000)
            request_id_var.reset(token)
            tenant_var.reset(tenant)
