"""The proxy: sends a request to an upstream and passes the response back as bytes, chunk by chunk.

A client that leaves cancels the upstream at once, because the connection to it is closed, whether the response is a
stream or not. A failure before the first byte of the response's body becomes an error with its own status. After that
byte, a stream of events ends with an error event and any other response with a cut connection, never with a short
response that looks complete.

Knows no models: `upstreams` says which servers may answer. Reads no body: `limits` does.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from tessera.errors import (
    BadGatewayError,
    ClientClosedError,
    GatewayTimeoutError,
    TesseraError,
    UnavailableError,
)
from tessera.web.bodies.spool import SpooledForm
from tessera.web.draining import draining, stopping_error
from tessera.web.errors import shape_in
from tessera.wire.models import Task
from tessera_gateway.events import WholeEvents
from tessera_gateway.exchange import RETURNED_HEADERS, SentHeaders, UpstreamResponse, refuse_unusable
from tessera_gateway.limits import Body, renamed
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.upstream import Upstream
from tessera_gateway.upstreams import Upstreams

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESENDS = 1
"""Most times that a request that was sent is sent again. A request that ends the process of its upstream must not reach
all replicas."""


class _UpstreamUnreachableError(Exception):
    """The request did not reach the upstream."""


class _UpstreamCutError(Exception):
    """The request was sent, but the connection ended before the first byte of the response's body."""


class Proxy:
    """Sends requests to upstreams over one pool of connections.

    Args:
        upstreams: the servers that may answer.
        session: pool of connections to them.
        metrics: metrics of the gateway.
        connect_timeout_s: most seconds to connect to an upstream.
        idle_timeout_s: most seconds that an upstream may send nothing.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        *,
        connect_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self.upstreams = upstreams
        self.session = session
        self.metrics = metrics
        self.idle_timeout_s = idle_timeout_s
        self.timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=idle_timeout_s)

    async def forward(self, request: Request[Any, Any, Any], path: str, task: Task, body: Body) -> ASGIApp:
        """Send `body` to an upstream that has its model and can do `task`.

        Args:
            request: the client's request; its body has been read, so all that can still arrive is the disconnect.
            path: the route, the same on every server with OpenAI's API.
            task: what the model must be able to do.
            body: the body as it arrived.

        Returns:
            The response as an ASGI app, when the first piece of the upstream's body has arrived.

        Raises:
            TesseraError: no upstream can answer, or the upstream failed before the first piece.
            ClientClosedError: the client left.
        """
        body = await self.with_own_name(body)
        headers = SentHeaders.of(request, body.content_type)

        async def ask(upstream: Upstream) -> UpstreamResponse:
            return await self.ask(upstream, path, body.data, headers)

        answer, gone = await self.first_answer(request, body.model, task, ask, body.cache_key)
        return Relay(answer, gone, self)

    async def with_own_name(self, body: Body) -> Body:
        """The body, with the model's own name in the place of an alias: an upstream knows no aliases."""
        own = await self.upstreams.resolve(body.model)
        return body if own == body.model else await renamed(body, own)

    async def first_answer(
        self,
        request: Request[Any, Any, Any],
        model: str,
        task: Task,
        ask: Callable[[Upstream], Awaitable[UpstreamResponse]],
        cache_key: str = "",
    ) -> tuple[UpstreamResponse, asyncio.Task[None]]:
        """Ask the upstreams that have `model` one after the other, until one answers.

        Args:
            request: the client's request; its body has been read.
            model: its name.
            task: what the model must be able to do.
            ask: asks one upstream, by one or more calls of `Proxy.ask`.
            cache_key: requests with the same key go to the same upstream while it can take them; empty for no key.

        Returns:
            The response, whose first piece has arrived, and the task that ends when the client leaves. The caller owns
            both: it cancels the task and calls `finish`.

        Raises:
            TesseraError: no upstream can answer, or the upstream failed before the first piece.
            ClientClosedError: the client left.
        """
        gone = asyncio.create_task(_disconnect(request.receive))
        try:
            return await unless_gone(gone, self._first_of(model, task, ask, cache_key)), gone
        except BaseException:
            gone.cancel()
            raise

    def finish(self, answer: UpstreamResponse) -> None:
        """Give the connection back to the pool, or close it if the response has not ended."""
        answer.response.close()
        answer.upstream.in_flight -= 1

    async def _first_of(
        self, model: str, task: Task, ask: Callable[[Upstream], Awaitable[UpstreamResponse]], cache_key: str
    ) -> UpstreamResponse:
        waiting = deque(await self.upstreams.candidates(model, task, cache_key))
        resends = 0
        reason = ""
        while waiting:
            upstream = waiting.popleft()
            try:
                return await ask(upstream)
            except _UpstreamUnreachableError as error:
                reason = f"{upstream.name}: {error}"
                upstream.lost(str(error))
                self.metrics.errors.labels(upstream.name, "unreachable").inc()
            except _UpstreamCutError as error:
                reason = f"{upstream.name}: {error}"
                self.metrics.errors.labels(upstream.name, "cut").inc()
                if resends == MAX_RESENDS:
                    break
                resends += 1
                waiting.append(upstream)
            logger.warning("no answer from upstream %s", reason)
        if resends:
            raise BadGatewayError("the upstream cut the connection before it answered; try again", retry_after=1.0)
        raise UnavailableError(f"no upstream of the model {model!r} can be reached now; try again", retry_after=2.0)

    async def ask(
        self, upstream: Upstream, path: str, data: bytes | SpooledForm, headers: SentHeaders
    ) -> UpstreamResponse:
        """Send one request to one upstream, and wait for the first piece of its response.

        Only within the `ask` of `first_answer`, which turns an unreachable upstream and a cut connection into a second
        attempt.
        """
        upstream.in_flight += 1
        upstream.sent += 1
        response: aiohttp.ClientResponse | None = None
        started = time.perf_counter()
        try:
            response = await self.session.post(
                upstream.url + path,
                data=io.BytesIO(data) if isinstance(data, bytes) else data.pieces(),
                headers=headers.to(upstream) if isinstance(data, bytes) else headers.to(upstream, data.sent_bytes),
                timeout=self.timeout,
                allow_redirects=False,
            )
            first = await response.content.readany()
            refuse_unusable(upstream, response.status)
        except BaseException as error:
            if response is not None:
                response.close()
            upstream.in_flight -= 1
            explained = self._explain(error, upstream)
            if explained is error:
                raise
            raise explained from error
        self.metrics.answered(upstream.name, response.status, time.perf_counter() - started)
        return UpstreamResponse(upstream, response, first)

    def _explain(self, error: BaseException, upstream: Upstream) -> BaseException:
        """The error for an exception before the first piece; an exception that is not the upstream's fault is returned
        as it is."""
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL):
            return _UpstreamUnreachableError(str(error))
        if isinstance(error, TimeoutError):
            self.metrics.errors.labels(upstream.name, "timeout").inc()
            return self.silent(upstream)
        if isinstance(error, aiohttp.ClientResponseError):
            self.metrics.errors.labels(upstream.name, "invalid").inc()
            logger.warning("upstream %s answered what is not HTTP: %s", upstream.name, error.message)
            return BadGatewayError(f"the upstream {upstream.name} answered with something that is not HTTP")
        if isinstance(error, aiohttp.ClientError | OSError):
            return _UpstreamCutError(str(error) or type(error).__name__)
        if isinstance(error, BadGatewayError):
            self.metrics.errors.labels(upstream.name, "invalid").inc()
        return error

    def silent(self, upstream: Upstream) -> GatewayTimeoutError:
        """The error for an upstream that sent nothing for too long."""
        return GatewayTimeoutError(f"the upstream {upstream.name} was silent for {self.idle_timeout_s:g} seconds")


class Relay:
    """Passes an upstream's response to the client, as an ASGI app. Owns the response and the task that waits for the
    client's disconnect."""

    def __init__(self, answer: UpstreamResponse, gone: asyncio.Task[None], proxy: Proxy) -> None:
        self.answer = answer
        self.gone = gone
        self.proxy = proxy

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Pass the response on. Closing it wakes a pending read, so a client that leaves ends this at once."""
        response, upstream = self.answer.response, self.answer.upstream
        self.gone.add_done_callback(lambda _: response.close())
        # Compressed events cannot be separated or added to, so they pass as any other bytes.
        is_events = response.content_type == "text/event-stream" and "content-encoding" not in response.headers
        whole = WholeEvents() if is_events else None
        state = draining()
        try:
            with state.ended_by(response.close):
                await self._pass_on(send, whole)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if self.gone.done():
                self.proxy.metrics.cancelled.labels(upstream.name).inc()
                return
            failure = stopping_error() if state.over else self._failure(error)
            logger.warning("upstream %s failed within an answer: %s", upstream.name, error)
            if is_events:
                last = shape_in(scope).event(failure)
                await send({"type": "http.response.body", "body": last, "more_body": False})
            # Any other response is left unfinished: the server cuts the connection, and the client sees a short read.
        finally:
            self.gone.cancel()
            self.proxy.finish(self.answer)

    async def _pass_on(self, send: Send, whole: WholeEvents | None) -> None:
        response, is_events = self.answer.response, whole is not None
        await send({"type": "http.response.start", "status": response.status, "headers": self._headers(is_events)})
        piece = self.answer.first
        while piece:
            ready = whole.feed(piece) if whole else piece
            if ready:
                await send({"type": "http.response.body", "body": ready, "more_body": True})
            piece = await response.content.readany()
        rest = whole.rest() if whole else b""
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    def _failure(self, error: Exception) -> TesseraError:
        upstream = self.answer.upstream
        if isinstance(error, TimeoutError):
            self.proxy.metrics.errors.labels(upstream.name, "timeout").inc()
            return self.proxy.silent(upstream)
        self.proxy.metrics.errors.labels(upstream.name, "cut").inc()
        return BadGatewayError(f"the upstream {upstream.name} cut the connection within its answer")

    def _headers(self, is_events: bool) -> list[tuple[bytes, bytes]]:
        given = self.answer.response.headers
        names = [name for name in RETURNED_HEADERS if name in given and not (is_events and name == "content-length")]
        headers = [(name.encode(), given[name].encode("latin-1", "replace")) for name in names]
        if is_events and "x-accel-buffering" not in given:
            headers.append((b"x-accel-buffering", b"no"))
        return headers


async def _disconnect(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(gone: asyncio.Task[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if `gone` ends first.

    Raises:
        ClientClosedError: `gone` ended first.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise ClientClosedError("the client closed the connection before the answer began")
    return task.result()
