"""One request of the hot path and its answer: asked of one upstream after the other, and passed on as it arrives.

Everything is done by callbacks of the two connections, the client's and the upstream's. A task is made only to connect.
When the client reads slowly, the upstream is read no further until it goes on: what is held is bounded.

Failures are said as everywhere: by a status before the first byte of the answer; after it, by an error event within a
stream, and by a cut connection within any other answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tessera.errors import BadGatewayError, TesseraError, UnavailableError
from tessera.telemetry import request_id_var
from tessera.web.draining import stopping_error
from tessera.web.early import ClientConnection, EarlyAnswer, FrontDoor, named
from tessera.web.errors import CLIENT_CLOSED_REQUEST, handle
from tessera_gateway.events import WholeEvents
from tessera_gateway.exchange import RETURNED_HEADERS, refuse_unusable
from tessera_gateway.hot.connections import UpstreamConnection
from tessera_gateway.hot.requests import Head, HotRoute, Sender
from tessera_gateway.proxy import MAX_RESENDS
from tessera_gateway.upstream import Upstream

logger = logging.getLogger(__name__)

_RETURNED = frozenset(name.encode() for name in RETURNED_HEADERS)
_NO_BODY = frozenset({204, 304})


class Exchange(EarlyAnswer):
    """An answer that an upstream makes. It is the `Listener` of the connection to it.

    Args:
        client: the connection that the request came by.
        door: what the request passed.
        sender: has the connections to upstreams.
        route: the request's.
        head: what is needed of the request's head.
        model: the model's own name.
        data: the body for the upstream.
        upstreams: who may answer, best first.
    """

    def __init__(
        self,
        client: ClientConnection,
        door: FrontDoor,
        sender: Sender,
        route: HotRoute,
        head: Head,
        model: str,
        data: bytes,
        upstreams: Iterable[Upstream],
    ) -> None:
        super().__init__(client, door, head.url.decode(), head.request_id, len(data))
        self._sender = sender
        self._proxy = sender.proxy
        self._route = route
        self._head = head
        self._model = model
        self._data = data
        self._waiting = deque(upstreams)
        self._resends = 0
        self._connecting: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        """Who is asked, while it has not answered to the end."""
        self._connection: UpstreamConnection | None = None
        self._asked_at = 0.0
        self._events: WholeEvents | None = None
        self._tail = route.tail() if route.tail is not None else None
        self._is_chunked = False

    def start(self) -> None:
        """Implement `EarlyAnswer.start`: ask the next upstream."""
        while self._waiting:
            upstream = self._waiting.popleft()
            connection = self._sender.pool(upstream).idle()
            if connection is None:
                self._connecting = asyncio.get_running_loop().create_task(self._connect(upstream))
            else:
                self._ask(upstream, connection)
            return
        if self._resends:
            self._refuse(
                BadGatewayError("the upstream cut the connection before it answered; try again", retry_after=1.0)
            )
        else:
            self._refuse(
                UnavailableError(
                    f"no upstream of the model {self._model!r} can be reached now; try again", retry_after=2.0
                )
            )

    def pause(self) -> None:
        """Implement `EarlyAnswer.pause`."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Implement `EarlyAnswer.resume`."""
        if self._connection is not None:
            self._connection.resume()

    def left(self) -> None:
        """Implement `EarlyAnswer.left`: the upstream stops, because its connection is closed."""
        if self.response_started and self._upstream is not None:
            self._proxy.metrics.cancelled.labels(self._upstream.name).inc()
        if not self.response_started:
            self.status = CLIENT_CLOSED_REQUEST
        self._let_go()
        self.ended()

    def end_early(self) -> None:
        """Implement `EarlyAnswer.end_early`."""
        self._let_go()
        self.keep_alive = False
        with named(self.request_id):
            self._fail(stopping_error())

    def took(self, data: bytes, *, ended: bool) -> None:
        """Implement `Listener.took`."""
        head = b""
        if not self.response_started:
            assert self._upstream is not None, "it answers"
            assert self._connection is not None, "it answers"
            try:
                refuse_unusable(self._upstream, self._connection.status)
            except BadGatewayError as error:
                self._proxy.metrics.errors.labels(self._upstream.name, "invalid").inc()
                if ended:
                    self._connection = None  # it may be another request's by now
                self._let_go()
                with named(self.request_id):
                    self._refuse(error)
                return
            head = self._begin(self._upstream, self._connection)
        if self._events is not None:
            data = self._events.feed(data)
            if ended:
                data += self._events.rest()
            if self._tail is not None:
                self._tail.saw(data)
        self._write(head, data, ended=ended)
        if ended:
            self._connection = None
            self._let_go()
            self.response_complete = True
            self.ended()

    def broke(self, error: Exception) -> None:
        """Implement `Listener.broke`."""
        with named(self.request_id):
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        upstream, self._connection = self._upstream, None
        assert upstream is not None, "it was asked"
        self._let_go()
        errors = self._proxy.metrics.errors
        shown: TesseraError
        if isinstance(error, TimeoutError):
            errors.labels(upstream.name, "timeout").inc()
            shown = self._proxy.silent(upstream)
        elif isinstance(error, httptools.HttpParserError | httptools.HttpParserUpgrade):
            errors.labels(upstream.name, "invalid").inc()
            shown = BadGatewayError(f"the upstream {upstream.name} answered with something that is not HTTP")
        else:
            errors.labels(upstream.name, "cut").inc()
            shown = BadGatewayError(f"the upstream {upstream.name} cut the connection within its answer")
            if not self.response_started:
                logger.warning("no answer from upstream %s: %s", upstream.name, error)
                self._ask_again(upstream)
                return
        if self.response_started:
            logger.warning("upstream %s failed within an answer: %s", upstream.name, error)
        self._fail(shown)

    async def _connect(self, upstream: Upstream) -> None:
        request_id_var.set(self.request_id)  # of this task alone
        try:
            connection = await self._sender.pool(upstream).connect()
        except OSError as error:
            reason = str(error) or type(error).__name__
            upstream.lost(reason)
            self._proxy.metrics.errors.labels(upstream.name, "unreachable").inc()
            logger.warning("no answer from upstream %s: %s", upstream.name, reason)
            self._connecting = None
            self.start()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is answered
            self._connecting = None
            self._refuse(error)
        else:
            self._connecting = None
            self._ask(upstream, connection)

    def _ask(self, upstream: Upstream, connection: UpstreamConnection) -> None:
        self._upstream, self._connection = upstream, connection
        upstream.in_flight += 1
        upstream.sent += 1
        self._asked_at = time.perf_counter()
        connection.send(self._sender.head_for(upstream, self._head, len(self._data)), self._data, self)

    def _ask_again(self, upstream: Upstream) -> None:
        """Ask the others, and in the end the same upstream again, which has cut a connection without an answer."""
        if self._resends == MAX_RESENDS:
            self._waiting.clear()
        else:
            self._resends += 1
            self._waiting.append(upstream)
        self.start()

    def _let_go(self) -> None:
        """Let go of the upstream, or of the way to it. One that is still answering is cut."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._upstream is not None:
            self._upstream.in_flight -= 1
            self._upstream = None

    def _begin(self, upstream: Upstream, connection: UpstreamConnection) -> bytes:
        """The head of the answer."""
        self._proxy.metrics.answered(upstream.name, connection.status, time.perf_counter() - self._asked_at)
        given = connection.headers
        # Compressed events cannot be separated or added to, so they pass as any other bytes.
        kind = given.get(b"content-type", b"")
        if kind.lower().startswith(b"text/event-stream") and b"content-encoding" not in given:
            self._events = WholeEvents()
            given.pop(b"content-length", None)
            given.setdefault(b"x-accel-buffering", b"no")
        return self._head_of(connection.status, [one for one in given.items() if one[0] in _RETURNED])

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        self.response_started, self.status = True, status
        pieces = [STATUS_LINE[status]]
        has_length = False
        for name, value in [*self.client.server_state.default_headers, *headers]:
            has_length = has_length or name == b"content-length"
            pieces += [name, b": ", value, b"\r\n"]
        request_id = self.request_id.encode()
        pieces += [b"x-request-id: ", request_id, b"\r\n"]
        if self._route.id_header:
            pieces += [self._route.id_header, b": ", request_id, b"\r\n"]
        if not self.keep_alive:
            pieces.append(b"connection: close\r\n")
        self._is_chunked = not has_length and status not in _NO_BODY
        pieces.append(b"transfer-encoding: chunked\r\n\r\n" if self._is_chunked else b"\r\n")
        return b"".join(pieces)

    def _write(self, head: bytes, data: bytes, *, ended: bool) -> None:
        if self._is_chunked:
            end = b"0\r\n\r\n" if ended else b""
            data = b"%b%x\r\n%b\r\n%b" % (head, len(data), data, end) if data else head + end
        elif head:
            data = head + data
        if data:
            self.client.transport.write(data)

    def _fail(self, error: TesseraError) -> None:
        """Say that there will be no more of the answer."""
        if not self.response_started:
            self._refuse(error)
            return
        if self._events is not None:
            last = self._route.shape.event(error) if self._tail is None else self._tail.event(error)
            self._write(b"", last, ended=True)
            self.response_complete = True
        self.ended()

    def _refuse(self, error: Exception) -> None:
        """Answer with an error."""
        refusal = handle(error, self._route.shape)
        status, body = refusal.status_code or CLIENT_CLOSED_REQUEST, refusal.content
        own = {"content-type": "application/json", "content-length": str(len(body))}
        headers = {**{name.lower(): value for name, value in refusal.headers.items()}, **own}
        headers.pop(self._route.id_header.decode(), None)  # the head has it
        head = self._head_of(status, [(name.encode(), value.encode()) for name, value in headers.items()])
        self._write(head, body, ended=True)
        self.response_complete = True
        self.ended()
