"""Runs the prompts of one request, a bounded number at a time; when one fails, the others are cancelled.

Without the bound, one request of many prompts would fill the engine's queue for everybody, and the queue would refuse
its last prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
