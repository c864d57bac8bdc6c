"""Waiting for a condition, with a deadline, in place of a sleep that hopefully lasts long enough.

All tests share these two functions: use them instead of a loop of your own. A plain `sleep` is left only where time
itself is what the test is about (a lease runs out, nothing happens for a while); a comment beside it says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

DEADLINE_S = 20.0
"""Seconds that a condition has by default: far more than it needs, so that a busy machine fails no test."""
EVERY_S = 0.01
"""Seconds between two looks by default."""

Reason = str | Callable[[], str]
"""What was waited for, or a function that says it when the deadline is over (for example: the content of a log)."""


def until(
    condition: Callable[[], Value],
    seconds: float = DEADLINE_S,
    *,
    what: Reason = "the condition",
    every_s: float = EVERY_S,
) -> Value:
    """Call `condition` until it returns something true, and return that.

    Args:
        condition: what must become true. An exception in it ends the wait; suppress in it what may be raised meanwhile.
        seconds: deadline.
        what: named in the failure.
        every_s: seconds between two calls.

    Raises:
        AssertionError: the deadline is over.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, _late(what, seconds)
        time.sleep(every_s)
    return value


async def until_async(
    condition: Callable[[], Value],
    seconds: float = DEADLINE_S,
    *,
    what: Reason = "the condition",
    every_s: float = EVERY_S,
) -> Value:
    """The same as `until` on an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, _late(what, seconds)
        await asyncio.sleep(every_s)
    return value


def _late(what: Reason, seconds: float) -> str:
    return f"waited {seconds:g} s for {what if isinstance(what, str) else what()}"
