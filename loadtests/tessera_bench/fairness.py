"""What a crowd of one key costs another key: the newcomer's first token beside many streams, against it alone.

Knows nothing about turns: it sends requests with two keys and times them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from tessera_bench import streaming
from tessera_bench.suite import Suite
from tessera_bench.workload import ratio

KEYS = ("sk-newcomer-0123456789", "sk-crowd-0123456789")
CROWD_TOKENS = 4000
TOKENS = 5
PAUSE_S = 0.5
FULL_LIMIT_S = 60.0
"""Most seconds that the crowd has to fill the engine."""
FULL = 16
"""Streams that run when it is full, or all there are."""
SETTINGS = {"gateway.api_keys": ",".join(KEYS), "text.max_output_tokens": str(CROWD_TOKENS)}
"""Settings of the suite that is measured."""
_MORE: Mapping[str, Any] = {"ignore_eos": True}


async def run(suite: Suite, *, model: str, streams: int, rounds: int) -> None:
    """Measure and print.

    Args:
        suite: a suite with `SETTINGS`.
        model: name of its language model.
        streams: streams of the crowd at once.
        rounds: newcomers, alone and beside the crowd.
    """
    async with streaming.client(KEYS[0]) as newcomer, streaming.client(KEYS[1]) as greedy:
        await _firsts(newcomer, suite, model, "warm", 3)
        alone = await _firsts(newcomer, suite, model, "alone", rounds)
        asked = [f"Tell story number {number}." for number in range(streams)]
        crowd = asyncio.create_task(
            streaming.at_once(greedy, suite.url("gateway"), model, asked, CROWD_TOKENS, _MORE), name="crowd"
        )
        before = await _filled(newcomer, suite, min(FULL, streams))
        beside = await _firsts(newcomer, suite, model, "beside", rounds)
        if crowd.done():
            raise SystemExit("the crowd had ended before the newcomers had: ask for more streams")
        running = min(before, await _running(newcomer, suite))
        crowd.cancel()
        await asyncio.gather(crowd, return_exceptions=True)
    print(f"fairness: first of {TOKENS} tokens of one key beside {streams} streams of another ({running:.0f} at once)")
    for name, found in (("alone", alone), ("beside the crowd", beside)):
        print(f"  {name:18} median {statistics.median(found) * 1000:6.0f} ms, most {max(found) * 1000:6.0f} ms")
    print(f"  beside / alone: {ratio(statistics.median(beside), statistics.median(alone))} (bar 3)")


async def _running(session: aiohttp.ClientSession, suite: Suite) -> float:
    """Requests that the engine runs, as its service last heard."""
    async with session.get(suite.url("text") + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("tessera_text_engine_requests_running "))


async def _filled(session: aiohttp.ClientSession, suite: Suite, wanted: int) -> float:
    """Wait until so many requests run. Returns how many do."""
    ends = time.monotonic() + FULL_LIMIT_S
    running = await _running(session, suite)
    while running < wanted and time.monotonic() < ends:
        await asyncio.sleep(PAUSE_S)
        running = await _running(session, suite)
    return running


async def _firsts(session: aiohttp.ClientSession, suite: Suite, model: str, name: str, rounds: int) -> list[float]:
    """Seconds to the first token of each newcomer, one after the other, with prompts that no cache has."""
    found = []
    for number in range(rounds):
        question = f"{name}: {number} times {number + 7}, please: what is it, and why so?"
        answer = await streaming.at_once(session, suite.url("gateway"), model, [question], TOKENS, _MORE)
        found.append(answer.streams[0].ttft)
        await asyncio.sleep(PAUSE_S)
    return found
