"""A server that stops: it says so before it does, open answers finish, and what cannot finish is told why.

`Draining` knows in which of three states a server is: it serves; it drains (`/ready` answers 503, answers go on); its
time is over (streams end with an error event, other requests with 503). Whoever sends a stream says how to end it
early, by `ended_by`. Does not know signals or sockets (`tessera.web.serve`), nor how a protocol writes errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from tessera.errors import UnavailableError
from tessera.web.errors import shape_in

RETRY_S = 1.0
"""Seconds after which a client whose request was ended may send it again: to another replica, or to the next start."""


class Draining:
    """Whether a server is about to stop, and what must be ended then."""

    def __init__(self) -> None:
        self.began = False
        self.over = False
        self._ends: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """The server will stop: it is not ready any more."""
        self.began = True

    def end_all(self) -> None:
        """The time is over: end every stream that is still open."""
        self.over = True
        for end in list(self._ends):
            end()

    @property
    def has_open(self) -> bool:
        """Whether an answer is open that said how to end it."""
        return bool(self._ends)

    def add(self, end: Callable[[], None]) -> None:
        """Have `end` called if the server's time is over before `discard`."""
        self._ends.add(end)

    def discard(self, end: Callable[[], None]) -> None:
        """The answer that `end` would have ended has ended."""
        self._ends.discard(end)

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called if the server's time is over within the context; at once if it is over already."""
        self.add(end)
        try:
            if self.over:
                end()
            yield
        finally:
            self.discard(end)


_draining: ContextVar[Draining] = ContextVar("draining")


def draining() -> Draining:
    """The state of the server whose request the current task works on; one that never stops outside of a server."""
    return _draining.get(None) or Draining()


def stopping_error() -> UnavailableError:
    """The error of a request that the server's end cut short."""
    return UnavailableError("the server is stopping and cannot finish this; send it again", retry_after=RETRY_S)


class DrainedApp:
    """Wraps an ASGI app: its requests know the server's state, and one that is cancelled at the end is answered 503."""

    def __init__(self, app: ASGIApp, state: Draining) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _draining.set(self.state)
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != ScopeType.HTTP or not self.state.over:
                raise
            reply = shape_in(scope).reply(stopping_error())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(reply.body)).encode()),
                (b"retry-after", str(round(RETRY_S)).encode()),
                (b"x-should-retry", b"true"),
                (b"connection", b"close"),
                *((name.encode(), value.encode()) for name, value in reply.headers.items()),
            ]
            with contextlib.suppress(RuntimeError):  # an answer has begun: it stays cut, which its client sees
                await send({"type": "http.response.start", "status": reply.status, "headers": headers})
                await send({"type": "http.response.body", "body": reply.body, "more_body": False})
