"""Cancels the work for a client that leaves before its response is computed.

Streaming responses notice it by themselves; a handler that computes one whole response waits for the disconnect beside
the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar import Request

T = TypeVar("T")


class ClientLeftError(Exception):
    """The client has closed its connection, so there is nobody to respond to."""


async def unless_client_leaves(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects first. Call it after the body has been read.

    Raises:
        ClientLeftError: the client left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError
    finally:
        for other in (task, gone):
            other.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _left(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
