"""Server-sent events over a plain stream: framing, keep-alive comments, errors after the first byte.

Does not know what is in the events. Litestar 2's own SSE has no keep-alive ping, so proxies would cut silent streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec
from litestar.response import Stream

from tessera.errors import TesseraError
from tessera.web.draining import draining, stopping_error
from tessera.web.errors import openai_shape, translate

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_EVERY_S = 15.0
"""Seconds of silence after which a comment keeps the connection open."""


def event(value: object, name: str | None = None, *, identity: str | None = None) -> bytes:
    """One event with `value` as JSON; a client that reconnects sends `identity` as `Last-Event-ID`."""
    head = (f"id: {identity}\n" if identity else "").encode() + (f"event: {name}\n" if name else "").encode()
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_event(error: TesseraError) -> list[bytes]:
    """How a stream of OpenAI's ends that failed after it had begun."""
    return [openai_shape.event(error)]


async def framed(
    events: AsyncIterator[bytes],
    *,
    done: bool = True,
    failed: Callable[[TesseraError], list[bytes]] = error_event,
    ping: bytes = PING,
) -> AsyncIterator[bytes]:
    """Pass `events` on and ping while they are silent, unless `ping` is empty; end with what `failed` returns if they
    fail, else with `[DONE]`.

    Closing this iterator (the client left) closes `events`, which is how a disconnect becomes a cancel. A server that
    stops and can wait no longer closes them, too, and the stream has failed.
    """
    pending: asyncio.Task[bytes] | None = None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if pending is not None:
            pending.cancel()

    ended_by = contextlib.ExitStack()
    try:
        ended_by.enter_context(draining().ended_by(stop))
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            finished, _ = await asyncio.wait({pending}, timeout=PING_EVERY_S)
            if not finished:
                if ping:
                    yield ping
                continue
            task, pending = pending, None
            try:
                piece = task.result()
            except StopAsyncIteration:
                break
            except asyncio.CancelledError:
                if stopped:
                    raise stopping_error() from None
                raise
            yield piece
            if stopped:
                raise stopping_error()
    except Exception as error:
        known = translate(error)
        if not isinstance(error, TesseraError):
            logger.exception("a stream failed")
        for piece in failed(known):
            yield piece
        return
    finally:
        ended_by.close()
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    if done:
        yield DONE


async def stream_response(
    events: AsyncIterator[bytes],
    *,
    done: bool = True,
    failed: Callable[[TesseraError], list[bytes]] = error_event,
) -> Stream:
    """An event stream as a response; `done` says whether it ends with `[DONE]`, `failed` how it ends after a failure.

    The first event is awaited before the response starts, so that an error before it has its own HTTP status.
    """
    try:
        first = await anext(events)
    except StopAsyncIteration:
        first = b""

    async def resumed() -> AsyncIterator[bytes]:
        try:
            if first:
                yield first
            async for piece in events:
                yield piece
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    return Stream(
        framed(resumed(), done=done, failed=failed),
        headers={
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        },
    )
