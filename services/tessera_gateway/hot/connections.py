"""Connections to upstreams, driven by callbacks: HTTP/1.1 over httptools, kept open between requests.

A connection tells its listener what arrived as soon as it arrived, all bytes of one read at once, without a task or a
future for each piece. Does not know what is in a request or a response, and never sends a request twice.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol
from urllib.parse import urlsplit

import httptools

IDLE_S = 4.0
"""Seconds after which an idle connection is closed: before common servers do it (5 s), so that no request is sent over
a closing one."""
MOST_IDLE = 256
"""Most idle connections that are kept to one upstream."""


class Listener(Protocol):
    """What a connection calls, never more after `ended` or `broke`."""

    def took(self, data: bytes, *, ended: bool) -> None:
        """Take bytes of the body; `ended` says whether they are the last. The head is in the connection."""

    def broke(self, error: Exception) -> None:
        """Know that the response will not end: `TimeoutError` for silence, `httptools.HttpParserError` for what is not
        HTTP, `OSError` for a cut."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream.

    Args:
        idle: where the connection puts itself after a response, if it can be used again.
        idle_timeout_s: most seconds that an upstream may send nothing.
    """

    def __init__(self, idle: list[UpstreamConnection], *, idle_timeout_s: float) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Headers of the response, by lower-case name. Of a header that comes twice, the first counts."""
        self.idle_since = 0.0
        self._idle = idle
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)
        self._listener: Listener | None = None
        self._pieces: list[bytes] = []
        self._has_ended = False
        self._ends_with_connection = False
        self._reusable = True
        self._paused = False
        self._last_byte_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self._transport.is_closing()

    def send(self, head: bytes, body: bytes, listener: Listener) -> None:
        """Send a request; only while no other is being answered."""
        self._listener = listener
        if self.closed:  # since it was made: nobody else will tell the listener
            self._loop.call_soon(self._break, ConnectionResetError("the connection was closed"))
            return
        self.headers = {}
        self._has_ended = False
        self._last_byte_at = self._loop.time()
        if self._timer is None:  # it outlives a request, because that costs less than one for each
            self._timer = self._loop.call_later(self._idle_timeout_s, self._check_silence)
        self._transport.write(head + body if len(body) < 65536 else head)
        if len(body) >= 65536:
            self._transport.write(body)

    def pause(self) -> None:
        """Read nothing until `resume`, because the listener cannot take more."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._last_byte_at = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection and tell nobody. An upstream that is still answering stops."""
        self._listener = None
        self._stop_timer()
        self._reusable = False
        if self in self._idle:
            self._idle.remove(self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.Protocol`: the end of a response whose length is not told, else a cut."""
        self._reusable = False
        self._stop_timer()
        if self in self._idle:
            self._idle.remove(self)
        if self._listener is None:
            return
        if exc is None and self._ends_with_connection:
            self._finish(b"")
        else:
            self._break(exc or ConnectionResetError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`: pass on all that one read brought, at once."""
        if self._listener is None:
            self.abort()  # an upstream that speaks unasked
            return
        self._last_byte_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(error)
            return
        pieces = self._pieces
        if not pieces and not self._has_ended:
            return
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._has_ended:
            self._finish(body)
        else:
            self._listener.took(body, ended=False)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._has_ended:
            self._reusable = False  # more than one response to one request: what follows is thrown away

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if not self._has_ended:
            self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._has_ended:
            return
        self.status = self._parser.get_status_code()
        self._ends_with_connection = not {b"content-length", b"transfer-encoding"} & self.headers.keys()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if not self._has_ended:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser: the end of the response, or of an interim one (1xx)."""
        if self._has_ended:
            return
        if self.status < 200:
            self.headers = {}
            return
        self._has_ended = True
        self._reusable = self._reusable and self._parser.should_keep_alive()

    def _finish(self, body: bytes) -> None:
        listener, self._listener = self._listener, None
        if not self._reusable or self._transport.is_closing() or len(self._idle) >= MOST_IDLE:
            self._transport.close()
        else:
            self.resume()
            self.idle_since = self._loop.time()
            self._idle.append(self)
        if listener is not None:
            listener.took(body, ended=True)

    def _break(self, error: Exception) -> None:
        listener = self._listener
        self.abort()
        if listener is not None:
            listener.broke(error)

    def _check_silence(self) -> None:
        self._timer = None
        if self._listener is None:
            return
        now = self._loop.time()
        since = now if self._paused else self._last_byte_at
        left = since + self._idle_timeout_s - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            self._break(TimeoutError())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ConnectionPool:
    """Connections to one upstream.

    Args:
        url: its address.
        connect_timeout_s: most seconds to connect.
        idle_timeout_s: most seconds that it may send nothing.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, idle_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc.rpartition("@")[2]
        """What the `Host` header says."""
        self.path = parts.path
        """What comes before the path of a route."""
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._idle: list[UpstreamConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    def idle(self) -> UpstreamConnection | None:
        """The connection that was used last, if it can be used again."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises `OSError` (also for `TimeoutError`) if the upstream cannot be reached."""
        loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_S / 4, self._sweep)
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: UpstreamConnection(self._idle, idle_timeout_s=self._idle_timeout_s),
                *self._address,
                ssl=self._ssl,
            )
        return connection

    def close(self) -> None:
        """Close what is idle."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._idle):
            connection.abort()

    def _sweep(self) -> None:
        """Close connections that have been idle for long. They are in the order of their last use."""
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since > IDLE_S:
            self._idle[0].abort()
        self._sweeper = loop.call_later(IDLE_S / 4, self._sweep)
