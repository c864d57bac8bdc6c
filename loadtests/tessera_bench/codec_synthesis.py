"""What texts gain when a codec language model speaks them together: all at once against one after the other, over HTTP.

The same texts with the same seeds make the same audio both ways, so times compare. The peer is Transformers' `generate`
of the same directory, one text alone. Every number is of one run on one machine; read the ratios.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import aiohttp

from tessera_bench.suite import Suite

BYTES_A_SECOND = 2 * 24_000
SECONDS = 4
"""That each text is spoken for; random weights do not end by themselves."""
FRAMES = 12.5 * SECONDS
TEXTS = (
    "Every large picture is made of small stones.",
    "Each of them is a tile of its own.",
    "None of them is quite like another.",
    "Whoever stands close sees colors.",
    "Whoever steps back sees a face.",
    "That is how all of this was made.",
    "A stone that falls out leaves a hole.",
    "Somebody finds it and puts it back.",
)
PEER = """
import json, sys, time, torch
from transformers import CsmForConditionalGeneration, PreTrainedTokenizerFast
directory, text, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = CsmForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
ids = tokenizer(f"{tokenizer.bos_token}[0]{text}{tokenizer.eos_token}", add_special_tokens=False, return_tensors="pt")
def speak(frames):
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(ids["input_ids"], max_new_tokens=frames, output_audio=True)
    return time.perf_counter() - started
speak(2)
print(json.dumps(speak(frames)))
"""


async def run(suite: Suite, *, model: str, streams: int) -> None:
    """Measure and print a table with ratios.

    Args:
        suite: running, with speech and gateway; it speaks for `SECONDS` at most.
        model: its synthesis model, of CSM's class.
        streams: texts at once.
    """
    texts = [TEXTS[number % len(TEXTS)] for number in range(streams)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:
        await _speak(session, suite, model, "Warm.", 0)
        started = time.perf_counter()
        alone = [await _speak(session, suite, model, text, number) for number, text in enumerate(texts)]
        one_by_one = time.perf_counter() - started
        started = time.perf_counter()
        shared = await asyncio.gather(
            *(_speak(session, suite, model, text, number) for number, text in enumerate(texts))
        )
        together = time.perf_counter() - started
    peer = await asyncio.to_thread(_transformers, suite, model)
    seconds = sum(made for _, _, made in alone)
    print(f"speech_synthesis: {model}, {streams} texts of {SECONDS} s, pcm through the gateway")
    print(f"  one after the other {one_by_one:8.1f} s   together {together:8.1f} s   for {seconds:.1f} s of speech")
    print(f"    together, times as fast:              {one_by_one / together:6.2f}   (bar: 3)")
    print(f"    seconds of work for one of speech:    {together / seconds:6.2f}")
    print(f"    first audio, alone / together:        {_mean(alone):6.2f} / {_mean(shared):.2f} s")
    print(f"    one alone ÷ Transformers, one:        {one_by_one / streams / peer:6.2f}")


def _mean(found: list[tuple[float, float, float]]) -> float:
    return sum(first for first, _, _ in found) / len(found)


async def _speak(
    session: aiohttp.ClientSession, suite: Suite, model: str, text: str, seed: int
) -> tuple[float, float, float]:
    """Seconds to the first audio and to the end, and of the audio."""
    started = time.perf_counter()
    first, size = 0.0, 0
    body = {"model": model, "input": text, "response_format": "pcm", "seed": seed}
    async with session.post(f"{suite.url('gateway')}/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        async for piece in response.content.iter_any():
            first = first or time.perf_counter() - started
            size += len(piece)
    return first, time.perf_counter() - started, size / BYTES_A_SECOND


def _transformers(suite: Suite, model: str) -> float:
    """Seconds that Transformers takes for one text in a process of its own, while the suite is idle."""
    command = [sys.executable, "-c", PEER, str(suite.models / model), TEXTS[0], str(round(FRAMES))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"Transformers failed:\n{done.stderr[-2000:]}")
    seconds: float = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds
