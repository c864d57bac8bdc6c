"""A gate that lets a number of requests through at a time; tenants that wait before it take turns.

Knows nothing about what is behind it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tessera.errors import OverloadedError


class FairGate:
    """Lets requests through: the tenant that has fewest inside is next, then who waits longest.

    Args:
        places: requests that may be inside.
        max_waiting: requests that may wait. A tenant that has less than its share of them may still wait beyond that,
            up to twice as many together.
    """

    def __init__(self, places: int, max_waiting: int) -> None:
        self._places = places
        self._max_waiting = max_waiting
        self._inside: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        Raises:
            OverloadedError: too many wait.
        """
        if self._inside.total() >= self._places or self._waiting:
            await self._wait(tenant)
        else:
            self._inside[tenant] += 1
        try:
            yield
        finally:
            self._leave(tenant)

    async def _wait(self, tenant: str) -> None:
        waiting = sum(map(len, self._waiting.values()))
        if waiting >= self._max_waiting:
            own = len(self._waiting.get(tenant, ()))
            others = len(self._waiting.keys() - {tenant})
            if not others or own >= self._max_waiting // (1 + others) or waiting >= 2 * self._max_waiting:
                raise OverloadedError("too many requests are waiting to be read; try again later", retry_after=1.0)
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
