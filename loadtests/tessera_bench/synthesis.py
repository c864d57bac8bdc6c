"""Asks a suite to speak a text over HTTP and times the audio as it arrives."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from tessera_bench.suite import Suite

BYTES_A_SECOND = 2 * 24_000
"""Bytes of one second of PCM audio: 16-bit samples at 24 kHz, one channel."""


@dataclass(frozen=True)
class SpokenText:
    """How long the audio of one text took.

    Attributes:
        first_s: seconds from the request to the first audio.
        whole_s: seconds from the request to the end of the audio.
        audio_s: seconds of the audio itself.
    """

    first_s: float
    whole_s: float
    audio_s: float


async def speak(session: aiohttp.ClientSession, suite: Suite, model: str, text: str, **more: Any) -> SpokenText:
    """Speak `text` as PCM through the gateway; `more` are further fields of the request."""
    started = time.perf_counter()
    first, size = 0.0, 0
    body = {"model": model, "input": text, "response_format": "pcm", **more}
    async with session.post(f"{suite.url('gateway')}/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        async for piece in response.content.iter_any():
            first = first or time.perf_counter() - started
            size += len(piece)
    return SpokenText(first, time.perf_counter() - started, size / BYTES_A_SECOND)
