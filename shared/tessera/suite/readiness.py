"""Asks a running part about itself over HTTP: its health, its models, and how long its start took.

Knows neither processes nor what to do when a part does not answer.
"""

from __future__ import annotations

import re
from typing import TypeVar

import aiohttp
import msgspec

from tessera.wire.models import Health, Model, ModelList

T = TypeVar("T")

_START = re.compile(r"^\w*?start_(?P<part>\w+?)(?:_s)?_seconds (?P<seconds>\S+)$", re.MULTILINE)
TIMEOUT = aiohttp.ClientTimeout(total=5, connect=1)


async def health(session: aiohttp.ClientSession, url: str) -> Health | None:
    """The answer of `/ready`; None when nobody answers."""
    return await _decoded(session, f"{url}/ready", Health)


async def models(session: aiohttp.ClientSession, url: str) -> list[Model]:
    """The models that the part serves; empty when it does not answer."""
    answer = await _decoded(session, f"{url}/v1/models", ModelList)
    return [] if answer is None else answer.data


async def problem(session: aiohttp.ClientSession, url: str) -> str | None:
    """The message of the error that `/v1/models` answers with; None when it answers with no error."""
    answer = await _decoded(session, f"{url}/v1/models", _Envelope)
    return None if answer is None else answer.error.message


async def start_seconds(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Seconds of each phase of the engine's start, from the metrics `start_<phase>_seconds` in `/metrics`."""
    body = await _body(session, f"{url}/metrics")
    found = _START.finditer((body or b"").decode(errors="replace"))
    return {match["part"]: float(match["seconds"]) for match in found}


class _Message(msgspec.Struct):
    message: str


class _Envelope(msgspec.Struct):
    error: _Message


async def _decoded(session: aiohttp.ClientSession, url: str, kind: type[T]) -> T | None:
    body = await _body(session, url)
    try:
        return None if body is None else msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        return None


async def _body(session: aiohttp.ClientSession, url: str) -> bytes | None:
    try:
        async with session.get(url, timeout=TIMEOUT) as response:
            return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
