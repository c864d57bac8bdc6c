"""How soon speech is heard: time to the first audio of a text of ten seconds against its whole synthesis, over HTTP.

One text of several sentences and one of a single sentence, each several times; what counts is the part of one request's
own time after which its first audio came. The peer is Transformers' model of the same directory, which gives nothing
before everything. Every number is of one run on one machine; read the ratios.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time

import aiohttp

from tessera_bench.suite import Suite

BYTES_A_SECOND = 2 * 24_000
TEXTS = {
    "sentences": (
        "Every large picture is made of small stones. Each of them is a tile, and none is like another. "
        "Whoever stands close sees colors; whoever steps back sees a face. That is how all of this was made."
    ),
    "one sentence": (
        "every large picture is made of small stones and each of them is a tile of its own and none is like another "
        "and whoever steps back a little sees that all of them together are a face that looks at you"
    ),
}
PEER = """
import json, sys, time, torch
from transformers import VitsModel, VitsTokenizer
directory, texts = sys.argv[1], json.loads(sys.argv[2])
model = VitsModel.from_pretrained(directory, dtype=torch.float32).eval()
tokenizer = VitsTokenizer.from_pretrained(directory)
def speak(text):
    started = time.perf_counter()
    with torch.inference_mode():
        model(**tokenizer(text, return_tensors="pt"))
    return time.perf_counter() - started
speak("warm")
print(json.dumps({name: min(speak(text) for _ in range(2)) for name, text in texts.items()}))
"""


async def run(suite: Suite, *, model: str, rounds: int) -> None:
    """Measure and print a table with ratios.

    Args:
        suite: running, with speech and gateway.
        model: its synthesis model.
        rounds: of each text; the median is shown.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await _speak(session, suite, model, "Warm.")
        measured = {
            name: [await _speak(session, suite, model, text) for _ in range(rounds)] for name, text in TEXTS.items()
        }
    peer = await asyncio.to_thread(_transformers, suite, model)
    print(f"speech_synthesis: {model}, pcm through the gateway, median of {rounds}")
    for name, found in measured.items():
        first, whole, seconds = (statistics.median(values) for values in zip(*found, strict=True))
        share = statistics.median(one / other for one, other, _ in found)
        print(f"  {name}: {seconds:.1f} s of speech")
        print(f"    first audio {first:8.2f} s   whole {whole:8.2f} s   Transformers, whole {peer[name]:8.2f} s")
        print(f"    first audio ÷ whole:                  {share:6.2f}   (bar: 0.25)")
        print(f"    first audio ÷ Transformers, whole:    {first / peer[name]:6.2f}")
        print(f"    whole ÷ Transformers, whole:          {whole / peer[name]:6.2f}")


async def _speak(session: aiohttp.ClientSession, suite: Suite, model: str, text: str) -> tuple[float, float, float]:
    """Seconds to the first audio and to the end, and of the audio."""
    started = time.perf_counter()
    first, size = 0.0, 0
    body = {"model": model, "input": text, "response_format": "pcm"}
    async with session.post(f"{suite.url('gateway')}/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        async for piece in response.content.iter_any():
            first = first or time.perf_counter() - started
            size += len(piece)
    return first, time.perf_counter() - started, size / BYTES_A_SECOND


def _transformers(suite: Suite, model: str) -> dict[str, float]:
    """Transformers on the same directory in a process of its own, while the suite is idle."""
    command = [sys.executable, "-c", PEER, str(suite.models / model), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"Transformers failed:\n{done.stderr[-2000:]}")
    seconds: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds
