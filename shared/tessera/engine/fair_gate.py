"""A gate that lets a number of requests through at a time; tenants that wait before it take turns.

Knows nothing about what is behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tessera.engine import waiting_room
from tessera.engine.waits import WaitMeter
from tessera.errors import OverloadedError


class FairGate:
    """Lets requests through: the tenant that has fewest inside is next, then who waits longest.

    Args:
        places: requests that may be inside.
        max_waiting: requests that may wait. A tenant that has less than its share of them may still wait beyond that,
            up to twice as many together. None for any number.
        clock: tells the time in seconds.
    """

    def __init__(self, places: int, max_waiting: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._max_waiting = max_waiting
        self._inside: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._work = 0
        """Work of all who wait or are inside."""
        self._meter = WaitMeter(clock)

    @asynccontextmanager
    async def turn(self, tenant: str, work: int = 1) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        Args:
            tenant: who comes.
            work: how long it takes compared with others, in any unit; images, for instance.

        Raises:
            OverloadedError: too many wait; says how long those take.
        """
        self._check_room(tenant)
        self._work += work
        self._meter.came(work, self._work)
        try:
            if self._inside.total() >= self._places or self._waiting:
                await self._wait(tenant)
            else:
                self._inside[tenant] += 1
            try:
                yield
            finally:
                self._leave(tenant)
        finally:
            self._work -= work

    def _check_room(self, tenant: str) -> None:
        if self._max_waiting is None:
            return
        waiting = {name: len(turns) for name, turns in self._waiting.items()}
        if not waiting_room.takes(tenant, waiting, self._max_waiting):
            wait_s = self._meter.wait(self._work)
            raise OverloadedError(
                f"{sum(waiting.values())} requests are waiting to be read, for about {wait_s:.0f} s; try again then",
                retry_after=wait_s,
            )

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its place was given to it at this moment
                self._leave(tenant)
            else:
                self._forget(tenant, turn)
            raise

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant, deque())
        if turn in turns:  # else it was passed over already
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant, None)

    def _leave(self, tenant: str) -> None:
        self._inside[tenant] -= 1
        if not self._inside[tenant]:
            del self._inside[tenant]
        while self._waiting and self._inside.total() < self._places:
            # A dictionary keeps the order in which tenants came; who had a turn comes again behind the others.
            following = min(self._waiting, key=lambda name: self._inside[name])
            turns = self._waiting.pop(following)
            turn = turns.popleft()
            if turns:
                self._waiting[following] = turns
            if not turn.done():
                self._inside[following] += 1
                turn.set_result(None)
