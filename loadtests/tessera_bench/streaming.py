"""Streams chat completions over HTTP and times their tokens, in the same way for our suite and for any server.

TTFT is the time to the first non-empty content. TPOT is (end to end − TTFT) / (tokens − 1).
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
    """Times of one streamed answer, in seconds, and its tokens."""

    ttft: float
    total: float
    tokens: int

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.total - self.ttft) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Round:
    """Streams that ran at once, with the seconds from the first request to the last byte; or several such rounds."""

    streams: list[Stream]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second over all streams."""
        return sum(stream.tokens for stream in self.streams) / self.seconds


def joined(rounds: Sequence[Round]) -> Round:
    """Several rounds, which ran one after the other, as one."""
    return Round([stream for one in rounds for stream in one.streams], sum(one.seconds for one in rounds))


def client(key: str = "") -> aiohttp.ClientSession:
    """An HTTP client whose time limit is long enough for any peer, and which sends an API key if it has one.

    Each request has a connection of its own, because a server may close a connection after an answer.
    """
    timeout = aiohttp.ClientTimeout(total=900)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers)


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
        session: a client made by `client`.
        url: address of the server, without a path.
        model: name of the model at this server.
        questions: texts of one user message each.
        tokens: tokens that are generated for each question, no fewer.
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
