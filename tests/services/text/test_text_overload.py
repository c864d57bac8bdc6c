"""A text service whose queue is full says how long to wait, as it has measured it.

The bodies have far more tokens than are made while the test lasts, so that no bound depends on the machine's pace.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until_async

MODEL = "long-text"
CONTEXT = 32_768
BODY = {"model": MODEL, "prompt": "abc", "temperature": 0, "ignore_eos": True}
LONG = 30_000
"""Tokens of an answer that does not end within the test."""
PLACES = 3


@pytest.fixture(scope="module")
def service(start_service: Any, tiny_text_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = shutil.copytree(tiny_text_model, tmp_path_factory.mktemp("overload") / MODEL)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    limits = {"text__engine__max_running": "1", "text__engine__max_waiting": str(PLACES)}
    settings = {"text__max_output_tokens": str(CONTEXT), "text__engine__threads": "1", **limits}
    with start_service("text", text__model=str(directory), **settings) as running:
        yield running


def count(url: str, name: str) -> float:
    """The value of one of the engine's metrics."""
    return next(
        sample.value
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
        for sample in family.samples
        if sample.name == f"tessera_text_engine_{name}"
    )


@asynccontextmanager
async def asked(client: httpx.AsyncClient, number: int, tokens: int) -> AsyncIterator[None]:
    """So many requests under way; the clients leave at the end."""
    requests = [
        asyncio.ensure_future(client.post("/v1/completions", json=BODY | {"max_tokens": tokens})) for _ in range(number)
    ]
    try:
        yield
    finally:
        for request in requests:
            assert not request.done(), "the request ended, so it did not fill the queue"
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


async def told_wait(client: httpx.AsyncClient) -> float:
    """The seconds that a refused request is told to wait."""
    refused = await client.post("/v1/completions", json=BODY | {"max_tokens": 1})
    assert refused.status_code == 429, refused.text
    assert refused.json()["error"]["code"] == "overloaded"
    seconds, milliseconds = refused.headers["retry-after"], refused.headers["retry-after-ms"]
    assert int(seconds) == max(1, math.ceil(int(milliseconds) / 1000))
    assert f"about {int(milliseconds) / 1000:.0f} s" in refused.json()["error"]["message"]
    return int(milliseconds) / 1000


async def waits(url: str) -> tuple[float, float]:
    """What a refused request is told while short requests wait behind a long one, and while long ones do."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client, asked(client, 1, LONG):
        await until_async(lambda: count(url, "sampled_tokens_total") > 100, what="the first request to run")
        for tokens in (1, LONG):
            async with asked(client, PLACES, tokens):
                await until_async(lambda: count(url, "requests_waiting") == PLACES, what="all to wait")
                found.append(await told_wait(client))
            await until_async(lambda: count(url, "requests_waiting") == 0, what="all to leave")
    return found[0], found[1]


def test_a_refused_request_is_told_the_measured_wait(service):
    short, long = asyncio.run(waits(service.url))
    assert short < long
