"""How many bytes of request bodies one server holds in memory at the same time, over all requests.

Each request is bounded by its route; their sum is bounded here. A piece of a body counts from its arrival to the end of
its request, or until it is written to a disk (`HeldBody.put_away`). Bytes that have not arrived do not count: who
announces a large body and sends nothing takes no room from others. Knows no route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Gauge

from tessera.errors import OverloadedError
from tessera.web.bodies.memory import give_back_freed_memory

TRIM_BYTES = 32 * 1024 * 1024
"""Bytes of ended bodies after which freed memory is given back to the system."""
LARGE_BYTES = 64 * 1024
"""Bytes from which on a body's time counts for the wait that a refused client is told."""
WEIGHT = 0.2
"""Weight of the latest body in the mean time that bodies are held."""
_KEY = "tessera.body"


class BodyBudget:
    """What all bodies of one server hold.

    Args:
        limit: most bytes.
        registry: where `tessera_http_body_memory_bytes` is registered.
    """

    def __init__(self, limit: int, registry: CollectorRegistry) -> None:
        self.limit = limit
        self.used = 0
        self.held_s = 1.0
        """Mean seconds for which large bodies are held, the latest weighing most."""
        self._freed = 0
        gauge = Gauge("tessera_http_body_memory_bytes", "Bytes of request bodies held in memory.", registry=registry)
        gauge.set_function(lambda: self.used)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more are within the limit. A body that is alone always is."""
        return not self.used or self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Count bytes that are held from now on, until `end`."""
        self.used += size

    def end(self, size: int, seconds: float) -> None:
        """Note that a body of `size` bytes, held for so many seconds, has ended."""
        self.used -= size
        if size >= LARGE_BYTES:
            self.held_s += WEIGHT * (seconds - self.held_s)
        self._freed += size
        if self._freed >= TRIM_BYTES:
            self._freed = 0
            asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)


class HeldBody:
    """The body of one request, while it arrives and while it is held."""

    __slots__ = ("_at_end", "_began", "_budget", "_most", "_receive", "_size")

    def __init__(self, budget: BodyBudget, receive: Receive) -> None:
        self._budget = budget
        self._receive = receive
        self._size = self._most = 0
        self._began = 0.0
        self._at_end: Callable[[], None] | None = None

    async def receive(self) -> Any:
        """The next message of the request.

        Raises:
            OverloadedError: the piece of the body that it has goes over the budget, and others hold some of that.
        """
        message = await self._receive()
        if message["type"] == "http.request" and message["body"]:
            self._take(len(message["body"]))
        return message

    def put_away(self, size: int) -> None:
        """Say that so many bytes are in memory no longer."""
        self._size -= size
        self._budget.used -= size

    def at_end(self, close: Callable[[], None]) -> None:
        """Have `close` called when the request has ended."""
        self._at_end = close

    def let_go(self) -> None:
        """Give back all that is held: nobody needs the body any more, though its request may go on."""
        if self._most:
            self._budget.end(self._size, time.monotonic() - self._began)
            self._size = self._most = 0

    def end(self) -> None:
        """Give back all that is held. The request has ended."""
        if self._at_end is not None:
            self._at_end()
        self.let_go()

    def _take(self, size: int) -> None:
        budget = self._budget
        others = budget.used - self._size
        if others and budget.used + size > budget.limit:
            raise OverloadedError(
                f"request bodies in flight hold {budget.used} bytes of memory, and {budget.limit} is the limit "
                f"(http.body_memory_bytes); send this one again later",
                retry_after=max(1.0, budget.held_s),
            )
        if not self._began:
            self._began = time.monotonic()
        self._size += size
        self._most = max(self._most, self._size)
        budget.used += size


class BudgetedApp:
    """Wraps an ASGI app: counts the bodies of its requests."""

    def __init__(self, app: ASGIApp, budget: BodyBudget) -> None:
        self.app = app
        self.budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        held = HeldBody(self.budget, receive)
        scope[_KEY] = held  # type: ignore[literal-required]
        try:
            await self.app(scope, held.receive, send)
        finally:
            held.end()


def let_body_go(scope: Scope) -> None:
    """Say that the body of a request is used up, before the request has ended. Drop its bytes, too."""
    if (held := held_body(scope)) is not None:
        held.let_go()


def held_body(scope: Scope) -> HeldBody | None:
    """What a request holds of its body; None in an app whose bodies are not counted."""
    held = scope.get(_KEY)
    return held if isinstance(held, HeldBody) else None
