"""Wakes the watchers of a job when something happened to it, over one Redis subscription for the whole process.

A wake-up carries no data: a watcher reads what happened from the job's stream. So a wake-up that is lost (Redis was
down, or nobody was subscribed yet) only delays until the next look, at most `LOOK_EVERY_S` later. Does not know who
watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator

import redis.asyncio

from tessera.jobs.connection import REDIS_DOWN

logger = logging.getLogger(__name__)

CHANNEL = "tessera:events"
LOOK_EVERY_S = 2.0
"""Seconds after which a watcher reads the job's stream without a wake-up."""
RESUBSCRIBE_AFTER_S = 1.0
"""Seconds between a subscription that broke and the next attempt."""
LISTEN_S = 0.5
"""Seconds after which the subscription checks whether anybody still watches."""
CLOSE_S = 2.0
"""Seconds that the subscription has to end by itself."""


class EventSubscription:
    """The watchers of jobs, and the subscription, which exists while anybody watches.

    Args:
        client: client of the Redis that has the jobs.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._woken: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None
        self._closing = False

    @contextlib.contextmanager
    def subscribe(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when something happened to a job; clear it before reading the job's stream."""
        woken = asyncio.Event()
        self._woken[job_id].add(woken)
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="job events")
        try:
            yield woken
        finally:
            self._woken[job_id].discard(woken)
            if not self._woken[job_id]:
                del self._woken[job_id]

    async def close(self) -> None:
        """End the subscription, within `CLOSE_S` seconds."""
        self._closing = True
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=CLOSE_S)
            self._listener.cancel()

    async def _listen(self) -> None:
        # It ends by itself: Redis' client may swallow a cancel in the middle of a command.
        while self._woken and not self._closing:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    while self._woken and not self._closing:
                        message = await subscription.get_message(timeout=LISTEN_S)
                        if message is not None:
                            for woken in self._woken.get(bytes(message["data"]).decode(), ()):
                                woken.set()
            except REDIS_DOWN as error:
                logger.info("the subscription to job events broke (%s); watchers look every %g s", error, LOOK_EVERY_S)
                await asyncio.sleep(RESUBSCRIBE_AFTER_S)


async def wait_for_event(woken: asyncio.Event) -> None:
    """Wait until something happened, or `LOOK_EVERY_S` is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_EVERY_S):
            await woken.wait()
