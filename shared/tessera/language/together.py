"""Runs the prompts of one request, a bounded number at a time; when one fails, the others are cancelled.

Without the bound, one request of many prompts would fill the engine's queue for everybody, and the queue would refuse
its last prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_CONCURRENT = 32
"""Most prompts of one request in the engine at the same time."""


async def run_bounded(calls: Sequence[Callable[[], Awaitable[T]]], *, at_once: int = MAX_CONCURRENT) -> list[T]:
    """Run calls concurrently and return their results in order.

    Args:
        calls: each makes one awaitable.
        at_once: most calls that run at the same time.

    Raises:
        Exception: the first failure, after the other calls were cancelled and have ended.
    """
    gate = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await call()

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def merged(
    streams: Sequence[Callable[[], AsyncGenerator[T]]], *, at_once: int = MAX_CONCURRENT
) -> AsyncGenerator[tuple[int, T]]:
    """What several streams yield, as it comes, each with the index of its stream. Closing this closes them all.

    Args:
        streams: each makes one stream.
        at_once: most streams that run at the same time.

    Raises:
        Exception: the first failure, after the other streams were closed.
    """
    gate = asyncio.Semaphore(at_once)
    items: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def feed(index: int, stream: Callable[[], AsyncGenerator[T]]) -> None:
        try:
            async with gate, contextlib.aclosing(stream()) as pieces:
                async for piece in pieces:
                    items.put_nowait((index, piece))
            items.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - the consumer raises it again
            items.put_nowait(error)

    feeders = [asyncio.ensure_future(feed(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(feeders)
        while running:
            item = await items.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for feeder in feeders:
            feeder.cancel()
        await asyncio.gather(*feeders, return_exceptions=True)
