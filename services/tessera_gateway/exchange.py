"""One exchange with an upstream: the headers that are sent, and a response whose first piece has arrived.

Knows no model and no route.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
from litestar import Request

from tessera.errors import BadGatewayError
from tessera.telemetry import request_id_var
from tessera.web.tenant import TENANT_HEADER
from tessera_gateway.upstream import Upstream

SENT_HEADERS = ("accept", "traceparent", "tracestate")
"""Headers of the client that are passed on to the upstream."""

RETURNED_HEADERS = (
    "content-type",
    "content-length",
    "content-encoding",
    "content-disposition",
    "cache-control",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-accel-buffering",
    "openai-processing-ms",
)
"""Headers of the upstream that are passed back to the client."""


class SentHeaders(msgspec.Struct, frozen=True):
    """The headers of a request to any upstream."""

    common: dict[str, str]
    ours: dict[str, str]
    """Headers that only the suite's own services are sent, such as the tenant."""

    @classmethod
    def of(cls, request: Request[Any, Any, Any], content_type: str) -> SentHeaders:
        """The headers on behalf of a client's request, whose body is sent as `content_type`."""
        common = {
            "content-type": content_type,
            "accept-encoding": "identity",
            "x-request-id": request_id_var.get() or "",
            **{name: value for name in SENT_HEADERS if (value := request.headers.get(name))},
        }
        return cls(common, {TENANT_HEADER: request.scope["tessera.owner"]})  # type: ignore[typeddict-item]

    def to(self, upstream: Upstream, size: int | None = None) -> dict[str, str]:
        """The headers for one upstream.

        Args:
            upstream: the upstream.
            size: number of bytes of a body that is sent in pieces; None for one that is sent whole.
        """
        length = {} if size is None else {"content-length": str(size)}
        return {**self.common, **(self.ours if upstream.ours else {}), **upstream.headers, **length}


class UpstreamResponse(msgspec.Struct, frozen=True):
    """The response of an upstream, of which the first piece has arrived."""

    upstream: Upstream
    response: aiohttp.ClientResponse
    first: bytes
    """The first piece of the body; empty if the body is empty."""


def refuse_unusable(upstream: Upstream, status: int) -> None:
    """Refuse a response that concerns the gateway and not the client's request.

    Raises:
        BadGatewayError: the upstream refuses the gateway's own key, or redirects.
    """
    if status in {401, 407}:
        raise BadGatewayError(
            f"the upstream {upstream.name} refuses the gateway's key; the operator sets it in gateway.upstreams"
        )
    if 300 <= status < 400:
        raise BadGatewayError(f"the upstream {upstream.name} redirects; the operator sets its final address")
