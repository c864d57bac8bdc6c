"""Wakes those who watch a job when something happened to it: one subscription for a whole process.

A wake-up carries nothing: what happened is read from the job's stream, so one that is lost (Redis was down, nobody was
subscribed yet) only delays until the next look, `LOOK_EVERY_S` later at most. Does not know who watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator

import redis.asyncio

from tessera.jobs.connection import DOWN

logger = logging.getLogger(__name__)

CHANNEL = "tessera:events"
LOOK_EVERY_S = 2.0
AGAIN_S = 1.0
LISTEN_S = 0.5
"""Seconds after which the subscription looks whether anybody still watches."""
END_S = 2.0


class EventSubscription:
    """Who watches which job, and the subscription, which is there while anybody watches.

    Args:
        client: of the Redis that the jobs are in.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._woken: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None
        self._closing = False

    @contextlib.contextmanager
    def subscribe(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when something happened to a job; clear it before looking."""
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
        """End the subscription, within `END_S`."""
        self._closing = True
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=END_S)
            self._listener.cancel()

    async def _listen(self) -> None:
        # It ends by itself: a cancel in the middle of a command is not always heard through the client.
        while self._woken and not self._closing:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    while self._woken and not self._closing:
                        message = await subscription.get_message(timeout=LISTEN_S)
                        if message is not None:
                            for woken in self._woken.get(bytes(message["data"]).decode(), ()):
                                woken.set()
            except DOWN as error:
                logger.info("the subscription to job events broke (%s); watchers look every %g s", error, LOOK_EVERY_S)
                await asyncio.sleep(AGAIN_S)


async def wait_for_event(woken: asyncio.Event) -> None:
    """Until something happened, or it is time to look again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_EVERY_S):
            await woken.wait()
