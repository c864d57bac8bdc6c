"""Requests of the hot path as upstreams get them: their heads, and the connections by which they go.

Knows neither clients nor answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tessera.errors import TesseraError
from tessera.web.errors import ErrorShape, openai_shape
from tessera.web.tenant import TENANT_HEADER
from tessera.wire.models import Task
from tessera_gateway.hot.connections import ConnectionPool
from tessera_gateway.proxy import Proxy
from tessera_gateway.upstream import Upstream


class StreamTail(Protocol):
    """What ends a stream that breaks off, in a protocol whose last event depends on those before it."""

    def saw(self, piece: bytes) -> None:
        """Know whole events that passed."""

    def event(self, error: TesseraError) -> bytes:
        """The last event; nothing if the stream had ended."""


@dataclass(frozen=True)
class HotRoute:
    """A route whose bodies pass through unchanged."""

    task: Task
    """What the model must be able to do."""
    ours_only: bool = False
    """Whether other servers than the suite's may lack it: then the app's handler translates."""
    shape: ErrorShape = openai_shape
    """How its errors are written."""
    id_header: bytes = b""
    """Name of a header that has the request's id too."""
    tail: Callable[[], StreamTail] | None = None
    """Makes what says how one of its streams ends that breaks off; None: as `shape` does, whatever passed."""
    takes: Callable[[bytes], bool] = lambda _: True
    """Whether a body passes through unchanged; what does not is for the app's handler."""


class Head(msgspec.Struct, frozen=True):
    """What is needed of the head of a request that takes the hot path."""

    url: bytes
    owner: str
    request_id: str
    sent: list[bytes]
    """Lines that every upstream is sent, in pieces."""


class Sender:
    """Writes heads of requests, and has the connections to all upstreams.

    Args:
        proxy: gives the proxy; only called while the app serves.
        connect_timeout_s: most seconds to connect to an upstream.
    """

    def __init__(self, proxy: Callable[[], Proxy], connect_timeout_s: float) -> None:
        self._proxy = proxy
        self._connect_timeout_s = connect_timeout_s
        self._pools: dict[str, ConnectionPool] = {}
        self._heads: dict[tuple[str, bytes], bytes] = {}

    @property
    def proxy(self) -> Proxy:
        """The proxy, whose upstreams and metrics they are."""
        return self._proxy()

    def close(self) -> None:
        """Close idle connections."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def pool(self, upstream: Upstream) -> ConnectionPool:
        """The connections to an upstream."""
        pool = self._pools.get(upstream.name)
        if pool is None:
            pool = self._pools[upstream.name] = ConnectionPool(
                upstream.url, connect_timeout_s=self._connect_timeout_s, idle_timeout_s=self.proxy.idle_timeout_s
            )
        return pool

    def head_for(self, upstream: Upstream, head: Head, size: int) -> bytes:
        """The head of the request to an upstream, whose body has `size` bytes."""
        begin = self._heads.get((upstream.name, head.url))
        if begin is None:
            pool = self.pool(upstream)
            lines = [f"POST {pool.path}{head.url.decode()} HTTP/1.1", f"host: {pool.host}", "accept-encoding: identity"]
            lines += [f"{name}: {value}" for name, value in upstream.headers.items()]
            begin = "\r\n".join([*lines, "content-type: application/json", ""]).encode()
            self._heads[upstream.name, head.url] = begin
        # Only the suite's own services are sent the tenant.
        tenant = f"{TENANT_HEADER}: {head.owner}\r\n" if upstream.ours else ""
        own = f"{tenant}x-request-id: {head.request_id}\r\ncontent-length: {size}\r\n\r\n".encode()
        return b"".join([begin, *head.sent, own])
