"""uvicorn's HTTP/1.1 over httptools, with limits that it lacks: bytes and seconds of a request's head, and seconds of
its body.

httptools keeps a head of any size in memory and waits for the end of a head or a body for ever. The time of a body runs
only while the server reads, so an app that is slow to take a body is not its client's fault. A body that is too slow is
refused in the envelope of its request's protocol, what never was a request in OpenAI's.

What an app wants to answer without ASGI (`tessera.web.early`) is offered here, with its whole body: uvicorn's scope,
cycle and task are made only for what goes to the app. Does not know apps, and leaves the size of bodies to them.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any, cast

from litestar.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tessera.errors import HeaderTooLargeError, InvalidRequestError, RequestTimeoutError, TesseraError
from tessera.web.bodies.pace import BodyClock, BodyPace, PipelineFlow
from tessera.web.draining import Draining
from tessera.web.early import AnyEarlyAnswers, EarlyAnswer
from tessera.web.errors import ErrorShape, openai_shape, shape_in

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line and its headers together."""
HEAD_TIMEOUT_S = 30.0
"""Most seconds from connecting, or from the first byte of a request, to the end of its headers."""
LINGER_S = 1.0
"""Seconds for which what a slow client still sends is thrown away."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose heads are bounded in bytes and in time, and whose bodies are bounded in time.

    Args:
        pace: how slowly a body may arrive.
        early: what answers some requests before the app.
        draining: whether the server is about to stop.
        arguments, options: those of uvicorn's class.
    """

    def __init__(
        self,
        *arguments: Any,
        pace: BodyPace | None = None,
        early: AnyEarlyAnswers | None = None,
        draining: Draining | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.draining = draining or Draining()
        self.keeps_alive = True
        """Whether the client of the request that was read last keeps its connection open."""
        self._early = early
        self._early_head: Any = None
        """Head of a request whose body is collected, to be answered early; None for any other request."""
        self._early_body: list[bytes] = []
        self._early_counted = 0
        """Bytes of it that the budget of bodies knows."""
        self._idle_timer: TimerHandle | None = None
        self._idle_since: float | None = None
        """When the latest request was answered, if that was early."""
        self._early_answer: EarlyAnswer | None = None
        """The answer that is being sent, if it is an early one."""
        self._in_body = False
        self._body_clock = BodyClock(self.loop, pace or BodyPace(), self._is_reading, self._give_up_body)
        self._too_slow = False
        self._in_head = False
        self._head_bytes = 0
        """Bytes that came while a head was being read, without the latest."""
        self._read_bytes = 0
        """Number of bytes of the read that is being parsed, or was last."""
        self._read_has_end = False
        """Whether a request has ended within that read."""
        self._too_large = False
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.pipeline)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_timer()
        self._in_body = False
        self._body_clock.stop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._early is not None and self._early_head is not None:
            self._early.left(self._early_head)
        self._forget_early()
        if self._early_answer is not None:
            self._early_answer.left()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than it is sent."""
        super().pause_writing()
        if self._early_answer is not None:
            self._early_answer.pause()

    def resume_writing(self) -> None:
        """Called when the client has read most of what it was sent."""
        super().resume_writing()
        if self._early_answer is not None:
            self._early_answer.resume()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head has grown over its limit. Most bodies come with their head and never start
        a clock."""
        if self._too_slow:
            return  # answered already; see `_close_after_answer`
        self._read_bytes = len(data)
        self._read_has_end = False
        super().data_received(data)
        if self._in_body and not self.transport.is_closing():
            self._body_clock.took(len(data))
            if self._early_head is not None:
                self._hold_early_body()
        if self._in_head:
            if self._head_timer is None:
                self._start_timer()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """Called when a head begins."""
        self.url = b""
        self.headers = []
        self._in_head = True
        # Of a read that begins with other requests nobody knows how much belongs to this head: it counts from the next
        self._head_bytes = -self._read_bytes if self._read_has_end else 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called with each header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called when a head has ended: check its size before anything is done with it."""
        self._in_head = False
        self._stop_timer()
        if max(self._head_bytes, 0) + self._read_bytes > MAX_HEAD_BYTES:  # else there is nothing to add up
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                self._too_large = True
                raise ValueError("the head is too large")
        self._in_body = True
        if (
            self._early is not None
            and self.url in self._early.urls
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused  # who does not read answers waits for them in the app
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
        ):
            self._early_head = self._early.head(self.url, self.headers)
        if self._early_head is None:
            self._begin_for_app()

    def on_body(self, body: bytes) -> None:
        """Called with a piece of a body."""
        if self._early_head is not None:
            self._early_body.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Called when a body has ended, or a head without one."""
        self._in_body = False
        self._read_has_end = True
        self._body_clock.stop()
        if self._early_head is not None:
            self._answer_early()
        else:
            super().on_message_complete()

    def shutdown(self) -> None:
        """Called when the server stops: close the connection when it is idle. A request that is arriving is
        answered."""
        self._give_up_early()
        super().shutdown()

    def early_answer_ended(self, answer: EarlyAnswer) -> None:
        """Called by an early answer at its end: the next request of the connection, or its end."""
        self._early_answer = None
        if not answer.response_complete or not answer.keep_alive:
            # Without its end, the client has less than was promised, and sees that it has.
            self.transport.close()
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()
        if self._idle_timer is None:  # it outlives requests, because that costs less than one for each
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_at_idleness)

    def _look_at_idleness(self) -> None:
        """Close a connection that has been idle since its last early answer, for as long as idle ones are kept."""
        self._idle_timer = None
        if self.transport.is_closing() or self._idle_since is None:
            return  # a request that the app answered came after it: uvicorn's own timer is at work
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        is_busy = self._in_head or self._in_body or self._early_answer is not None
        if is_busy or left > 0:
            wait = self.timeout_keep_alive if is_busy else left
            self._idle_timer = self.loop.call_later(wait, self._look_at_idleness)
        else:
            self.transport.close()

    def _answer_early(self) -> None:
        """Answer the request that was read, or give it to the app."""
        head, pieces, early = self._early_head, self._early_body, self._early
        self._forget_early()
        assert early is not None, "it gave the head"
        self.keeps_alive = self.parser.should_keep_alive()
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        answer = early.answer(self, head, body)
        if answer is None:
            self._begin_for_app()
            super().on_body(body)
            super().on_message_complete()
            return
        self.cycle = cast("RequestResponseCycle", answer)  # whose attributes it has, as far as uvicorn's class asks
        self._early_answer = answer
        answer.began()
        answer.start()
        if self.draining.over and not answer.response_complete:
            answer.end_early()

    def _hold_early_body(self) -> None:
        """Count what has arrived of a body that is not complete yet; the app refuses what is too much."""
        early = self._early
        assert early is not None, "it gave the head"
        size = self._body_clock.bytes
        more = size - self._early_counted
        if size <= early.most_bytes and early.budget.has_room(more):
            early.budget.take(more)
            self._early_counted += more
        else:
            self._give_up_early()

    def _give_up_early(self) -> None:
        """Give a request to the app whose body has not arrived whole."""
        if self._early_head is None:
            return
        pieces = self._early_body
        self._forget_early()
        if not self.transport.is_closing():
            self._begin_for_app()
            super().on_body(b"".join(pieces))

    def _forget_early(self) -> None:
        if self._early_counted:
            assert self._early is not None, "it counted"
            self._early.budget.take(-self._early_counted)
        self._early_head, self._early_body, self._early_counted = None, [], 0

    def _begin_for_app(self) -> None:
        """Make uvicorn's scope and cycle of the head that was read, and start the app."""
        self._idle_since = None
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers = self.scope["headers"] = headers
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that never reaches the app, and close the connection. uvicorn calls it for bytes that are
        not HTTP."""
        error: TesseraError = InvalidRequestError(f"not a valid HTTP request: {msg}", code="invalid_http")
        if self._too_large:
            error = HeaderTooLargeError(f"request line and headers may have {MAX_HEAD_BYTES} bytes together")
        if self._too_slow:
            clock = self._body_clock
            error = RequestTimeoutError(
                f"{clock.bytes} bytes of the body came in {clock.waited_s:.0f} s and then nothing, or too little, "
                f"for {clock.pace.idle_s:g} s; send the body at once (http.body_idle_s, http.body_bytes_per_s)"
            )
        # A request whose body is slow has been to the app, which noted in the scope how its errors are written.
        reply = self._shape().reply(error)
        head = (
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(reply.body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + reply.body)
        self._close_after_answer()

    def _shape(self) -> ErrorShape:
        """How an error of this connection is written that no app answers."""
        if not self._too_slow:
            return openai_shape
        if self._early is not None and self._early_head is not None:
            return self._early.shape(self._early_head)
        return shape_in(cast("Scope", self.scope))

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _is_reading(self) -> bool:
        return self._early_head is not None or not (self.flow.read_paused or self.cycle.waiting_for_100_continue)

    def _give_up_body(self) -> None:
        """Answer a client whose body is too slow."""
        if not self._in_body or self.transport.is_closing():
            return
        if self._early_head is None and self.cycle.response_started:
            self.transport.close()  # the answer is on its way or has been sent: nothing more can be said
        else:
            self._too_slow = True
            self.send_400_response("")

    def _close_after_answer(self) -> None:
        """Close the connection of a client that may still be sending. What it sends for a moment is thrown away: an
        answer is lost if its connection is closed with bytes that nobody read."""
        if self._too_slow and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
