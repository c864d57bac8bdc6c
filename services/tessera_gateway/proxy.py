"""The proxy: sends a request to an upstream and its answer back as bytes, chunk by chunk.

A client that leaves cancels the upstream at once, by closing the connection to it, whether the answer is a stream or
not. What goes wrong before the first byte of the answer's body becomes an error with its own status; after it, a stream
of events ends with an error event and anything else with a cut connection, never with a short answer that looks whole.

Does not know models: `upstreams` says who may answer. Reads no body: see `limits`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec
from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from tessera.errors import (
    BadGatewayError,
    ClientClosedError,
    GatewayTimeoutError,
    TesseraError,
    UnavailableError,
)
from tessera.telemetry import request_id_var
from tessera.web.errors import envelope
from tessera.web.tenant import TENANT_HEADER
from tessera.wire.models import Task
from tessera_gateway.events import WholeEvents
from tessera_gateway.limits import Body
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.upstreams import Upstream, Upstreams

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESENDS = 1
"""How often a request that was sent may be sent again. One that ends the process of its upstream must not walk on
through all replicas."""
SENT_HEADERS = ("accept", "traceparent", "tracestate")
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


class _UpstreamUnreachableError(Exception):
    """The request did not get to the upstream."""


class _UpstreamCutError(Exception):
    """The request was sent; the connection ended before the first byte of the answer's body."""


class UpstreamResponse(msgspec.Struct, frozen=True):
    """An upstream's answer that has begun."""

    upstream: Upstream
    response: aiohttp.ClientResponse
    first: bytes
    """The body's first piece; empty when the body is."""


class Proxy:
    """Sends requests to upstreams over one pool of connections."""

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
            request: the client's; its body has been read, so its channel has nothing left to say but "disconnected".
            path: the route, the same on every server that speaks OpenAI's API.
            task: what the model must be able to do.
            body: as it came.

        Returns:
            The response as an ASGI app, made when the first piece of the answer is there.

        Raises:
            TesseraError: nobody can answer, or the upstream failed before the first piece.
            ClientClosedError: the client left.
        """
        headers = {
            "content-type": body.content_type,
            "accept-encoding": "identity",
            "x-request-id": request_id_var.get() or "",
            **{name: value for name in SENT_HEADERS if (value := request.headers.get(name))},
        }
        gone = asyncio.create_task(_disconnect(request.receive))
        try:
            # Only our own services are told whose request it is.
            ours = {TENANT_HEADER: request.scope["tessera.owner"]}  # type: ignore[typeddict-item]
            answer = await _unless(gone, self._first_answer(path, task, body, headers, ours))
        except BaseException:
            gone.cancel()
            raise
        return Relay(answer, gone, self)

    def finish(self, answer: UpstreamResponse) -> None:
        """Give the connection back, or close it when the answer has not ended."""
        answer.response.close()
        self._count_in_flight(answer.upstream, -1)

    async def _first_answer(
        self, path: str, task: Task, body: Body, headers: dict[str, str], ours: dict[str, str]
    ) -> UpstreamResponse:
        waiting = deque(await self.upstreams.candidates(body.model, task))
        resends = 0
        reason = ""
        while waiting:
            upstream = waiting.popleft()
            try:
                return await self._ask(upstream, path, body, {**headers, **(ours if upstream.ours else {})})
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
        raise UnavailableError(
            f"no upstream of the model {body.model!r} can be reached now; try again", retry_after=2.0
        )

    async def _ask(self, upstream: Upstream, path: str, body: Body, headers: dict[str, str]) -> UpstreamResponse:
        self._count_in_flight(upstream, 1)
        upstream.sent += 1
        response: aiohttp.ClientResponse | None = None
        started = time.perf_counter()
        try:
            response = await self.session.post(
                upstream.url + path,
                data=io.BytesIO(body.data),
                headers={**headers, **upstream.headers},
                timeout=self.timeout,
                allow_redirects=False,
            )
            first = await response.content.readany()
            _refuse_unusable(upstream, response)
        except BaseException as error:
            if response is not None:
                response.close()
            self._count_in_flight(upstream, -1)
            explained = self._explain(error, upstream)
            if explained is error:
                raise
            raise explained from error
        self.metrics.first_byte.labels(upstream.name).observe(time.perf_counter() - started)
        self.metrics.requests.labels(upstream.name, str(response.status)).inc()
        return UpstreamResponse(upstream, response, first)

    def _explain(self, error: BaseException, upstream: Upstream) -> BaseException:
        """What an exception before the first piece means; one that is not the upstream's fault stays as it is."""
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
        """The error for an upstream that said nothing for too long."""
        return GatewayTimeoutError(f"the upstream {upstream.name} was silent for {self.idle_timeout_s:g} seconds")

    def _count_in_flight(self, upstream: Upstream, change: int) -> None:
        upstream.in_flight += change
        self.metrics.in_flight.labels(upstream.name).set(upstream.in_flight)


class Relay:
    """An answer on its way to the client, as an ASGI app. Owns the answer and the watch over the client."""

    def __init__(self, answer: UpstreamResponse, gone: asyncio.Task[None], proxy: Proxy) -> None:
        self.answer = answer
        self.gone = gone
        self.proxy = proxy

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Pass the answer on. Closing the response wakes a pending read, so a leaving client ends this at once."""
        response, upstream = self.answer.response, self.answer.upstream
        self.gone.add_done_callback(lambda _: response.close())
        # Compressed events cannot be told apart, nor added to: they pass as any other bytes.
        is_events = response.content_type == "text/event-stream" and "content-encoding" not in response.headers
        whole = WholeEvents() if is_events else None
        try:
            await send({"type": "http.response.start", "status": response.status, "headers": self._headers(is_events)})
            piece = self.answer.first
            while piece:
                ready = whole.feed(piece) if whole else piece
                if ready:
                    await send({"type": "http.response.body", "body": ready, "more_body": True})
                piece = await response.content.readany()
            rest = whole.rest() if whole else b""
            await send({"type": "http.response.body", "body": rest, "more_body": False})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if self.gone.done():
                self.proxy.metrics.cancelled.labels(upstream.name).inc()
                return
            failure = self._failure(error)
            logger.warning("upstream %s failed within an answer: %s", upstream.name, error)
            if is_events:
                last = b"data: " + envelope(failure) + b"\n\n"
                await send({"type": "http.response.body", "body": last, "more_body": False})
            # Anything else is left unfinished: the server then cuts the connection, and the client sees a short read.
        finally:
            self.gone.cancel()
            self.proxy.finish(self.answer)

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
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless(gone: asyncio.Task[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when `gone` ends first.

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


def _refuse_unusable(upstream: Upstream, response: aiohttp.ClientResponse) -> None:
    """Answers that are about the gateway, not about the client's request, are not passed on.

    Raises:
        BadGatewayError: the upstream refuses the gateway's own key, or points elsewhere.
    """
    if response.status in {401, 407}:
        raise BadGatewayError(
            f"the upstream {upstream.name} refuses the gateway's key; the operator sets it in gateway.upstreams"
        )
    if 300 <= response.status < 400:
        raise BadGatewayError(f"the upstream {upstream.name} redirects; the operator sets its final address")
