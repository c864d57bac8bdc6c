"""uvicorn's HTTP/1.1 over httptools, with limits that it lacks: bytes and seconds of a request's head.

httptools keeps a head of any size in memory and waits for its end for ever. Errors below the app are answered in
OpenAI's envelope too. Does not know apps, and leaves bodies to them.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tessera.errors import HeaderTooLargeError, InvalidRequestError, TesseraError
from tessera.web.errors import envelope

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line and its headers together."""
HEAD_TIMEOUT_S = 30.0
"""Most seconds from connecting, or from the first byte of a request, to the end of its headers."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose heads are bounded in bytes and in time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._too_large = False
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head has grown over its limit."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """Called when a head begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Called when a head has ended: check its size before anything is done with it."""
        self._in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that never reaches the app, and close the connection. uvicorn calls it for bytes that are
        not HTTP."""
        error: TesseraError = InvalidRequestError(f"not a valid HTTP request: {msg}", code="invalid_http")
        if self._too_large:
            error = HeaderTooLargeError(f"request line and headers may have {MAX_HEAD_BYTES} bytes together")
        body = envelope(error)
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()
