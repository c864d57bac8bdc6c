"""Passes the response of an upstream to a client as it arrives, without a task or a wake-up for each piece.

The connection to the upstream calls, and the client's `send` is run at once, as far as it does not wait. When it waits,
because the client reads slowly, the upstream is read no further until it goes on: what is held is bounded.

The request's own task waits for the client's disconnect meanwhile. It is woken by the end of the response, too, because
an ASGI server then says `http.disconnect`.

Does not know which upstream is asked, nor what happens after a failure: `path` does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from litestar.types import Message, Receive, Send

from tessera.errors import BadGatewayError
from tessera.web.draining import stopping_error
from tessera_gateway.events import WholeEvents
from tessera_gateway.exchange import RETURNED_HEADERS, refuse_unusable
from tessera_gateway.hot.connections import UpstreamConnection
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.upstreams import Upstream

_RETURNED = tuple(name.encode() for name in RETURNED_HEADERS)


class Transfer:
    """One response on its way. It is a `Listener` of its connection.

    Args:
        upstream: who answers.
        connection: the connection over which the request is sent.
        send: the client's.
        metrics: metrics of the gateway.
    """

    def __init__(self, upstream: Upstream, connection: UpstreamConnection, send: Send, metrics: GatewayMetrics) -> None:
        self.has_begun = False
        """Whether the client was sent the head of the response."""
        self.has_ended = False
        """Whether the client was sent all of the response."""
        self.is_events = False
        self.failure: Exception | None = None
        """Why the response will not end."""
        self._upstream = upstream
        self._connection = connection
        self._reading: UpstreamConnection | None = connection
        self._send_to_client = send
        self._metrics = metrics
        self._whole: WholeEvents | None = None
        self._held: deque[Message] = deque()
        self._suspended: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._started = time.perf_counter()

    async def over(self, receive: Receive) -> None:
        """Return when the response has ended or failed, or the client has left."""
        self._task = task = asyncio.current_task()
        assert task is not None, "called from a task"
        try:
            while self.failure is None and (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            # `_stop` wakes this task by cancelling it; any other cancellation goes on.
            if self.failure is None or task.uncancel() > 0:
                raise

    def took(self, data: bytes, *, ended: bool) -> None:
        """Implement `Listener.took`."""
        if ended:
            self._reading = None
        if self.failure is not None:
            return
        if not self.has_begun:
            try:
                refuse_unusable(self._upstream, self._connection.status)
            except BadGatewayError as error:
                self._stop(error)
                return
            self._begin()
        if self._whole is not None:
            data = self._whole.feed(data)
            if ended:
                data += self._whole.rest()
        if data or ended:
            self._send({"type": "http.response.body", "body": data, "more_body": not ended})

    def broke(self, error: Exception) -> None:
        """Implement `Listener.broke`."""
        self._reading = None
        self._stop(error)

    def end_early(self) -> None:
        """End, because the server stops."""
        if not self.has_ended:
            self._stop(stopping_error())

    async def flush(self) -> None:
        """Wait until a slow client has taken what is held."""
        while self._suspended is not None:
            self._flushed = asyncio.get_running_loop().create_future()
            await self._flushed

    def close(self) -> None:
        """Let go of the connection, and of what the client did not take. A response that has not ended is cancelled."""
        if self._suspended is not None:
            self._suspended.close()
            self._suspended = None
        if self._reading is not None:
            self._reading.abort()
            self._reading = None

    def _begin(self) -> None:
        connection = self._connection
        self._metrics.answered(self._upstream.name, connection.status, time.perf_counter() - self._started)
        given = connection.headers
        # Compressed events cannot be separated or added to, so they pass as any other bytes.
        kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.is_events = kind == b"text/event-stream" and b"content-encoding" not in given
        headers = [(name, given[name]) for name in _RETURNED if name in given]
        if self.is_events:
            self._whole = WholeEvents()
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            if b"x-accel-buffering" not in given:
                headers.append((b"x-accel-buffering", b"no"))
        self.has_begun = True
        self._send({"type": "http.response.start", "status": connection.status, "headers": headers})

    def _send(self, message: Message) -> None:
        if self._suspended is not None:
            self._held.append(message)
        else:
            self._step(self._send_to_client(message), message)  # type: ignore[arg-type]

    def _step(self, sending: Coroutine[Any, Any, None], message: Message) -> None:
        """Run the sending of `message` until it waits or ends."""
        try:
            waits_for = sending.send(None)
        except StopIteration:
            self._suspended = None
            self.has_ended = message["type"] == "http.response.body" and not message["more_body"]
        except Exception as error:  # noqa: BLE001 - whatever it is, the transfer ends by it
            self._suspended = None
            self._held.clear()
            self._stop(error)
        else:
            self._suspended = sending
            if self._reading is not None:
                self._reading.pause()
            waits_for._asyncio_future_blocking = False  # as a task does for a future that it has seen
            waits_for.add_done_callback(lambda _: self._go_on(sending, message))

    def _go_on(self, sending: Coroutine[Any, Any, None], message: Message) -> None:
        """The client takes more: send what is held, and read on."""
        if self._suspended is not sending:
            return
        self._step(sending, message)
        while self._held and not self._is_suspended():
            self._send(self._held.popleft())
        if not self._is_suspended():
            if self._reading is not None:
                self._reading.resume()
            if self._flushed is not None and not self._flushed.done():
                self._flushed.set_result(None)

    def _is_suspended(self) -> bool:
        return self._suspended is not None

    def _stop(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            if self._task is not None:
                self._task.cancel()
