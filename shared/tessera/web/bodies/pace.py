"""How slowly a request's body may arrive, the clock that measures it, and how far ahead requests are read. Knows no
protocol and no app."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Sized

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl

LOOKS = 8
"""Looks at a body within its idle time."""


class BodyPace(msgspec.Struct, frozen=True):
    """How slowly a body may arrive: seconds without a byte, and bytes a second on average after that time."""

    idle_s: float = 30.0
    bytes_per_s: float = 1024.0


class BodyClock:
    """Counts the time that a body takes, as far as the server was reading. Most bodies come with their head and never
    start it.

    Args:
        loop: the event loop.
        pace: how slowly a body may arrive.
        is_reading: whether the client could send.
        give_up: called once a body is over its time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pace: BodyPace,
        is_reading: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.pace = pace
        self.bytes = 0
        """Bytes that came after the head, and those that came with its end."""
        self.waited_s = 0.0
        """Seconds for which the server has waited for the body."""
        self._silent_s = self._looked_at = 0.0
        self._loop = loop
        self._is_reading = is_reading
        self._give_up = give_up
        self._timer: TimerHandle | None = None

    def took(self, size: int) -> None:
        """Count bytes of a body that is not complete."""
        self.bytes += size
        self._silent_s = 0.0
        if self._timer is None:
            self.waited_s, self._looked_at = 0.0, self._loop.time()
            self._look_again()

    def stop(self) -> None:
        """Be ready for the next body."""
        self.bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(self.pace.idle_s / LOOKS, self._look)

    def _look(self) -> None:
        """Count the time since the last look against the client, if the server was reading."""
        self._timer = None
        now = self._loop.time()
        passed, self._looked_at = now - self._looked_at, now
        if self._is_reading():
            self.waited_s += passed
            self._silent_s += passed
        most_s = self.pace.idle_s + self.bytes / self.pace.bytes_per_s
        if self._silent_s < self.pace.idle_s and self.waited_s < most_s:
            self._look_again()
        else:
            self._give_up()


class PipelineFlow(FlowControl):
    """uvicorn's, which reads on although requests wait for their turn: here their number is that of one read."""

    def __init__(self, transport: Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read again, unless requests wait that have been read."""
        if not self._waiting:
            super().resume_reading()
