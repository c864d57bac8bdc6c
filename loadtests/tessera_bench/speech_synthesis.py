"""Benchmark of synthesis over HTTP: time to the first audio of a text of ten seconds against its whole synthesis.

One text has several sentences and one has a single sentence; each is spoken several times. The result is the share of a
request's own time after which its first audio arrived. The peer is Transformers' model on the same directory, which
returns no audio before it has all of it. All numbers come from one run on one machine; read the ratios.
"""

from __future__ import annotations

import asyncio
import json
import statistics

import aiohttp

from tessera_bench.child_process import json_of
from tessera_bench.suite import Suite
from tessera_bench.synthesis import speak

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
    """Measure, and print a table with ratios.

    Args:
        suite: a running suite with speech and gateway.
        model: name of the synthesis model.
        rounds: times that each text is spoken; the median is shown.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await speak(session, suite, model, "Warm.")
        measured = {
            name: [await speak(session, suite, model, text) for _ in range(rounds)] for name, text in TEXTS.items()
        }
    peer = await asyncio.to_thread(_transformers, suite, model)
    print(f"speech_synthesis: {model}, pcm through the gateway, median of {rounds}")
    for name, found in measured.items():
        first = statistics.median(one.first_s for one in found)
        whole = statistics.median(one.whole_s for one in found)
        seconds = statistics.median(one.audio_s for one in found)
        share = statistics.median(one.first_s / one.whole_s for one in found)
        print(f"  {name}: {seconds:.1f} s of speech")
        print(f"    first audio {first:8.2f} s   whole {whole:8.2f} s   Transformers, whole {peer[name]:8.2f} s")
        print(f"    first audio ÷ whole:                  {share:6.2f}   (bar: 0.25)")
        print(f"    first audio ÷ Transformers, whole:    {first / peer[name]:6.2f}")
        print(f"    whole ÷ Transformers, whole:          {whole / peer[name]:6.2f}")


def _transformers(suite: Suite, model: str) -> dict[str, float]:
    """Seconds that Transformers takes for each text, by the text's name, while the suite is idle."""
    command = ["-c", PEER, str(suite.models / model), json.dumps(TEXTS)]
    seconds: dict[str, float] = json_of(command, "Transformers")
    return seconds
