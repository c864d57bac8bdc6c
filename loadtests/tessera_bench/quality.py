"""Benchmark of quality: perplexity of one text with each quantization scheme, against the weights as stored.

The text is Python's own language reference (`pydoc_data.topics`), which every Python carries, so it is the same
everywhere. The service itself scores the tokens in pieces, through `echo` with `logprobs`. Perplexity is e to the mean
negative log-probability; read the ratio.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import aiohttp

from tessera_bench.suite import Suite

WAYS: dict[str, dict[str, str]] = {
    "as stored": {"text.engine.weights": "stored"},
    "weights = int8": {"text.engine.weights": "int8"},
    "weights = int4": {"text.engine.weights": "int4"},
    "kv_cache_dtype = int8": {"text.engine.weights": "stored", "text.engine.kv_cache_dtype": "int8"},
    "kv_cache_dtype = fp8": {"text.engine.weights": "stored", "text.engine.kv_cache_dtype": "fp8"},
    "both int8": {"text.engine.weights": "int8", "text.engine.kv_cache_dtype": "int8"},
}
PIECE = 1024
"""Tokens of one piece; a token attends to earlier tokens of its piece alone."""
AT_ONCE = 2


def run(folder: Path, *, models: Path | None, model: str, tokens: int, ways: Sequence[str] = ()) -> None:
    """Measure the schemes, and print a table.

    Args:
        folder: folder for the suites' data.
        models: models directory; None takes this machine's.
        model: name of a starter that is a language model.
        tokens: tokens of the text.
        ways: names in `WAYS` to measure beside the first; empty measures all.
    """
    print(f"quality: {model}, perplexity of {tokens} tokens of Python's language reference in pieces of {PIECE}")
    first = None
    for name, changes in WAYS.items():
        if ways and first is not None and name not in ways:
            continue
        data = folder / name.replace(" ", "")
        with Suite(data, only="text,gateway", models=models, settings=changes | {"text.model": model}) as suite:
            began = time.perf_counter()
            value = asyncio.run(_perplexity(suite, model, tokens))
            seconds = time.perf_counter() - began
        first = first or value
        print(f"  {name:<24} {value:9.4f}   ÷ as stored: {value / first:7.4f}   {seconds:5.0f} s", flush=True)


async def _perplexity(suite: Suite, model: str, tokens: int) -> float:
    text = "\n".join(topics[name] for name in sorted(topics))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3600)) as session:
        asked = {"model": model, "prompt": text[: 8 * tokens]}
        found = (await _post(session, f"{suite.url('text')}/tokenize", asked))["tokens"][:tokens]
        pieces = [found[at : at + PIECE] for at in range(0, len(found), PIECE)]
        gate = asyncio.Semaphore(AT_ONCE)

        async def score(piece: list[int]) -> list[float]:
            body = {"model": model, "prompt": piece, "max_tokens": 1, "echo": True, "logprobs": 0}
            async with gate:
                answer = await _post(session, f"{suite.url('text')}/v1/completions", body)
            values: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(piece)]
            return values

        scores = [value for values in await asyncio.gather(*map(score, pieces)) for value in values]
    return math.exp(-sum(scores) / len(scores))


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body) as response:
        answer = await response.text()
        if response.status != 200:
            raise SystemExit(f"the service answered {response.status}: {answer[:300]}")
        found: dict[str, Any] = json.loads(answer)
        return found
