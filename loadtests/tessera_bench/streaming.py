"""Chat completions that are streamed over HTTP, and when their tokens come: the same for our suite and for any server.

TTFT and TPOT as DESIGN defines them: first non-empty content, and (end to end − TTFT) / (tokens − 1).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Stream:
    """What one streamed answer took, in seconds."""

    ttft: float
    total: float
    tokens: int

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.total - self.ttft) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Round:
    """Streams that ran at once, and the seconds from the first request to the last byte; or several such rounds."""

    streams: list[Stream]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second over all streams."""
        return sum(stream.tokens for stream in self.streams) / self.seconds


def joined(rounds: Sequence[Round]) -> Round:
    """Rounds that ran one after the other, as one."""
    return Round([stream for one in rounds for stream in one.streams], sum(one.seconds for one in rounds))


def client() -> aiohttp.ClientSession:
    """With a time limit of its own, long enough for any peer, and a connection for each request: a server may close one
    that it has answered on."""
    timeout = aiohttp.ClientTimeout(total=900)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def at_once(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    questions: Sequence[str],
    tokens: int,
    more: Mapping[str, Any] | None = None,
) -> Round:
    """Ask all questions together.

    Args:
        session: of `client`.
        url: of the server, without a path.
        model: as it calls it.
        questions: one user message each.
        tokens: generated for each, no fewer.
        more: fields that this server needs beside the usual ones.
    """
    started = time.perf_counter()
    streams = await asyncio.gather(*(_stream(session, url, model, one, tokens, more or {}) for one in questions))
    return Round(list(streams), time.perf_counter() - started)


async def _stream(
    session: aiohttp.ClientSession, url: str, model: str, question: str, tokens: int, more: Mapping[str, Any]
) -> Stream:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    started, first, counted = time.perf_counter(), 0.0, 0
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"the server answered {response.status}: {(await response.text())[:500]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("error"):
                raise SystemExit(f"the server failed: {chunk['error']['message']}")
            if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = time.perf_counter() - started
            if chunk.get("usage"):
                counted = chunk["usage"]["completion_tokens"]
    if counted != tokens:
        raise SystemExit(f"the server made {counted} of {tokens} tokens: rates would not compare")
    return Stream(first, time.perf_counter() - started, counted)
