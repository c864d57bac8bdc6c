"""The hot path: common requests of language models, answered before Litestar's router.

A POST of small JSON with an accepted key goes from here to an upstream, and the response back (`transfer`), without a
handler, dependency injection or a second task. Whatever is uncommon goes on to the router, with the body that was read:
another method or content type, a large body, no key, an unknown model. So its errors are said in one place.

Knows the routes that pass a body through unchanged, and nothing about what is in a body but its model.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import httptools
import msgspec
from litestar import Litestar, Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Receive, Scope, Send, WebSocketReceiveMessage

from tessera.errors import BadGatewayError, ClientClosedError, TesseraError, UnavailableError
from tessera.telemetry import request_id_var
from tessera.web.dependencies import HTTPRequest
from tessera.web.draining import draining
from tessera.web.errors import envelope, handle, openai_shape
from tessera.web.tenant import TENANT_HEADER
from tessera.wire.decoding import decode_json
from tessera.wire.models import Task
from tessera_gateway.exchange import SENT_HEADERS
from tessera_gateway.hot.connections import ConnectionPool, UpstreamConnection
from tessera_gateway.hot.transfer import Transfer
from tessera_gateway.keys import Keys
from tessera_gateway.limits import Routed
from tessera_gateway.proxy import MAX_RESENDS, Proxy
from tessera_gateway.renaming import renamed_json
from tessera_gateway.upstreams import Upstream

logger = logging.getLogger(__name__)

ReceiveMessage: TypeAlias = HTTPReceiveMessage | WebSocketReceiveMessage
MOST_BYTES = 256 * 1024
"""Largest body that takes the hot path."""
MOST_OWNERS = 1024
"""Most values of `Authorization` headers whose owner is remembered. They are accepted keys, which are held anyway."""
_SENT = frozenset(name.encode() for name in SENT_HEADERS)


@dataclass(frozen=True)
class HotRoute:
    """A route whose bodies pass through unchanged."""

    task: Task
    """What the model must be able to do."""
    ours_only: bool = False
    """Whether other servers than the suite's need a translation, which the router's handler makes."""


class Asked(msgspec.Struct, frozen=True):
    """A request that takes the hot path."""

    path: str
    head: bytes
    """Lines of the head that every upstream is sent."""
    owner: str
    model: str
    data: bytes


class HotPath:
    """Answers what is common, and leaves the rest to the router.

    Args:
        routes: the hot routes by path.
        keys: the accepted keys.
        proxy: gives the proxy; only called while the app serves.
        most_bytes: largest JSON body that the routes take; larger ones are refused by the router.
        connect_timeout_s: most seconds to connect to an upstream.
    """

    def __init__(
        self,
        routes: Mapping[str, HotRoute],
        keys: Keys,
        proxy: Callable[[], Proxy],
        *,
        most_bytes: int,
        connect_timeout_s: float,
    ) -> None:
        self.routes = routes
        self.keys = keys
        self.proxy = proxy
        self._most_bytes = min(MOST_BYTES, most_bytes)
        self._connect_timeout_s = connect_timeout_s
        self._owners: dict[bytes, str] = {}
        self._pools: dict[str, ConnectionPool] = {}
        self._heads: dict[tuple[str, str], bytes] = {}

    def before(self, router: ASGIApp) -> ASGIApp:
        """The router with the hot path before it."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(router, scope, receive, send)

        return answer

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Close idle connections when the app ends."""
        try:
            yield
        finally:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()

    async def _answer(self, router: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get(scope["path"]) if scope["type"] == ScopeType.HTTP else None
        if route is None or scope["method"] != "POST":  # type: ignore[typeddict-item]
            await router(scope, receive, send)
            return
        seen: list[ReceiveMessage] = []
        try:
            found = await self._find(scope, route, receive, seen)  # type: ignore[arg-type]
            if found is not None:
                await self._pass_on(*found, receive, send)
        except Exception as error:  # noqa: BLE001 - what an app does with its errors, outside of it
            request: HTTPRequest = Request(scope)
            response = handle(error, openai_shape).to_asgi_response(None, request)
            await response(scope, receive, send)
            return
        if found is None:
            await router(scope, _again(seen, receive), send)

    async def _find(
        self, scope: HTTPScope, route: HotRoute, receive: Receive, seen: list[ReceiveMessage]
    ) -> tuple[list[Upstream], Asked] | None:
        """Read the request, and find its upstreams; None if it has to go to the router. What was received is in `seen`
        then.

        Raises:
            OverloadedError: the bodies in flight hold too much memory.
        """
        length, content_type = -1, b""
        head = [b"content-type: application/json\r\nx-request-id: ", (request_id_var.get() or "").encode(), b"\r\n"]
        keys: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value)
            elif name == b"content-type":
                content_type = value
            elif name in _KEYS:
                keys.setdefault(name, value)
            elif name in _SENT:
                head += [name, b": ", value, b"\r\n"]
        if not 0 < length <= self._most_bytes or not _is_json(content_type):
            return None
        try:
            owner = self._owner(keys)
        except TesseraError:
            return None
        data = await _body(receive, seen)
        if data is None:
            return None
        try:
            routed = decode_json(data, Routed)
            upstreams = self.proxy().upstreams
            own = await upstreams.resolve(routed.model)
            candidates = await upstreams.candidates(own, route.task, routed.prompt_cache_key or "")
        except TesseraError:
            return None
        if route.ours_only and not all(upstream.ours for upstream in candidates):
            return None
        scope["tessera.owner"] = owner  # type: ignore[typeddict-unknown-key]
        seen.clear()
        scope["path_template"] = scope["path"]
        data = data if own == routed.model else renamed_json(data, own)
        return candidates, Asked(scope["path"], b"".join(head), owner, own, data)

    def _owner(self, keys: dict[bytes, bytes]) -> str:
        """The owner of a request. A header that was accepted is remembered, up to some: its digest takes longer to
        compute than all else that is checked."""
        authorization = keys.get(b"authorization", b"")
        owner = self._owners.get(authorization)
        if owner is None:
            owner = self.keys.owner_of(*[_text(keys.get(name)) for name in _KEYS])
            if self.keys.required and len(keys) == 1 and authorization and len(self._owners) < MOST_OWNERS:
                self._owners[authorization] = owner
        return owner

    async def _pass_on(self, upstreams: list[Upstream], asked: Asked, receive: Receive, send: Send) -> None:
        """Ask one upstream after the other, until one answers.

        Raises:
            TesseraError: no upstream can answer, or the upstream failed before the first byte of its answer.
            ClientClosedError: the client left before that.
        """
        proxy = self.proxy()
        waiting = deque(upstreams)
        resends = 0
        while waiting:
            upstream = waiting.popleft()
            pool = self._pool(upstream)
            connection = pool.idle()
            if connection is None:
                try:
                    connection = await pool.connect()
                except OSError as error:
                    upstream.lost(str(error) or type(error).__name__)
                    proxy.metrics.errors.labels(upstream.name, "unreachable").inc()
                    logger.warning("no answer from upstream %s: %s", upstream.name, error or type(error).__name__)
                    continue
            failure = await self._ask(upstream, connection, asked, receive, send)
            if failure is None:
                return
            proxy.metrics.errors.labels(upstream.name, "cut").inc()
            if resends == MAX_RESENDS:
                break
            resends += 1
            waiting.append(upstream)
            logger.warning("no answer from upstream %s: %s", upstream.name, failure)
        if resends:
            raise BadGatewayError("the upstream cut the connection before it answered; try again", retry_after=1.0)
        raise UnavailableError(
            f"no upstream of the model {asked.model!r} can be reached now; try again", retry_after=2.0
        )

    async def _ask(
        self, upstream: Upstream, connection: UpstreamConnection, asked: Asked, receive: Receive, send: Send
    ) -> Exception | None:
        """Ask one upstream, and pass its answer on. Returns why the connection was cut before there was an answer."""
        proxy = self.proxy()
        transfer = Transfer(upstream, connection, send, proxy.metrics)
        upstream.in_flight += 1
        upstream.sent += 1
        try:
            connection.send(self._head(upstream, asked), asked.data, transfer)
            with draining().ended_by(transfer.end_early):
                await transfer.over(receive)
            if transfer.failure is not None:
                return await self._fail(upstream, transfer, send)
            if transfer.has_begun:
                if not transfer.has_ended:
                    proxy.metrics.cancelled.labels(upstream.name).inc()
                return None
            raise ClientClosedError("the client closed the connection before the answer began")
        finally:
            transfer.close()
            upstream.in_flight -= 1

    async def _fail(self, upstream: Upstream, transfer: Transfer, send: Send) -> Exception | None:
        """Say that an answer failed: by an error before its first byte, by an error event within a stream. Any other
        response is left unfinished: the server cuts the connection, and the client sees a short read."""
        proxy, failure = self.proxy(), transfer.failure
        error: TesseraError
        if isinstance(failure, TimeoutError):
            reason, error = "timeout", proxy.silent(upstream)
        elif isinstance(failure, httptools.HttpParserError | httptools.HttpParserUpgrade):
            reason = "invalid"
            error = BadGatewayError(f"the upstream {upstream.name} answered with something that is not HTTP")
        elif isinstance(failure, BadGatewayError):
            reason, error = "invalid", failure
        elif isinstance(failure, TesseraError):
            reason, error = "", failure
        elif isinstance(failure, OSError):
            if not transfer.has_begun:
                return failure
            reason = "cut"
            error = BadGatewayError(f"the upstream {upstream.name} cut the connection within its answer")
        else:
            assert failure is not None, "called after a failure"
            if not transfer.has_begun:
                raise failure
            logger.error("an answer of upstream %s could not be sent on", upstream.name, exc_info=failure)
            return None
        if reason:
            proxy.metrics.errors.labels(upstream.name, reason).inc()
        if not transfer.has_begun:
            raise error
        logger.warning("upstream %s failed within an answer: %s", upstream.name, failure)
        if transfer.is_events:
            await transfer.flush()
            last = b"data: " + envelope(error) + b"\n\n"
            await send({"type": "http.response.body", "body": last, "more_body": False})
        return None

    def _pool(self, upstream: Upstream) -> ConnectionPool:
        pool = self._pools.get(upstream.name)
        if pool is None:
            pool = self._pools[upstream.name] = ConnectionPool(
                upstream.url, connect_timeout_s=self._connect_timeout_s, idle_timeout_s=self.proxy().idle_timeout_s
            )
        return pool

    def _head(self, upstream: Upstream, asked: Asked) -> bytes:
        begin = self._heads.get((upstream.name, asked.path))
        if begin is None:
            pool = self._pool(upstream)
            lines = [f"POST {pool.path}{asked.path} HTTP/1.1", f"host: {pool.host}", "accept-encoding: identity"]
            lines += [f"{name}: {value}" for name, value in upstream.headers.items()]
            begin = self._heads[upstream.name, asked.path] = "\r\n".join([*lines, ""]).encode()
        # Only the suite's own services are sent the tenant.
        tenant = f"{TENANT_HEADER}: {asked.owner}\r\n" if upstream.ours else ""
        return b"".join([begin, asked.head, f"{tenant}content-length: {len(asked.data)}\r\n\r\n".encode()])


_KEYS = (b"authorization", b"x-api-key", b"api-key")


def _is_json(content_type: bytes) -> bool:
    return content_type == b"application/json" or content_type.partition(b";")[0].strip().lower() == b"application/json"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


async def _body(receive: Receive, seen: list[ReceiveMessage]) -> bytes | None:
    """The body, whose length is bounded by its `content-length`; None if the client has left."""
    pieces = []
    while True:
        message = await receive()
        seen.append(message)
        if message["type"] != "http.request":
            return None
        pieces.append(message["body"])
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _again(seen: list[ReceiveMessage], receive: Receive) -> Receive:
    """Gives what was received once more, and then what comes."""
    if not seen:
        return receive
    first = deque(seen)

    async def received() -> ReceiveMessage:
        return first.popleft() if first else await receive()

    return received
