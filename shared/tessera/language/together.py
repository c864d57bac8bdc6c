"""Running the prompts of one request: a bounded number at a time, ended together when one fails.

Without the bound one request of many prompts fills the engine's queue for everybody, and its own tail is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_CONCURRENT = 32


async def run_bounded(calls: Sequence[Callable[[], Awaitable[T]]], *, at_once: int = MAX_CONCURRENT) -> list[T]:
    """Results in the order of `calls`. The first failure cancels the others and is raised when they have ended."""
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
