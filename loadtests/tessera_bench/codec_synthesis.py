"""Benchmark of a codec language model over HTTP: texts spoken all at once against one after the other.

The same texts with the same seeds make the same audio both ways, so the times compare. The peer is Transformers'
`generate` on the same directory with one text. All numbers come from one run on one machine; read the ratios.
"""

from __future__ import annotations

import asyncio
import time

import aiohttp

from tessera_bench.child_process import json_of
from tessera_bench.suite import Suite
from tessera_bench.synthesis import SpokenText, speak

SECONDS = 4
"""Seconds of audio of each text; a model with random weights does not end by itself."""
FRAMES = 12.5 * SECONDS
"""Codec frames in `SECONDS`: the codec has 12.5 frames a second."""
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
    """Measure, and print a table with ratios.

    Args:
        suite: a running suite with speech and gateway, whose longest audio of a text is `SECONDS`.
        model: name of the synthesis model, which is of CSM's class.
        streams: number of texts that are spoken at once.
    """
    texts = [TEXTS[number % len(TEXTS)] for number in range(streams)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:
        await speak(session, suite, model, "Warm.", seed=0)
        started = time.perf_counter()
        alone = [await speak(session, suite, model, text, seed=number) for number, text in enumerate(texts)]
        one_by_one = time.perf_counter() - started
        started = time.perf_counter()
        shared = await asyncio.gather(
            *(speak(session, suite, model, text, seed=number) for number, text in enumerate(texts))
        )
        together = time.perf_counter() - started
    peer = await asyncio.to_thread(_transformers, suite, model)
    seconds = sum(spoken.audio_s for spoken in alone)
    print(f"speech_synthesis: {model}, {streams} texts of {SECONDS} s, pcm through the gateway")
    print(f"  one after the other {one_by_one:8.1f} s   together {together:8.1f} s   for {seconds:.1f} s of speech")
    print(f"    together, times as fast:              {one_by_one / together:6.2f}   (bar: 3)")
    print(f"    seconds of work for one of speech:    {together / seconds:6.2f}")
    print(
        f"    first audio, alone / together:        {_mean_first_audio(alone):6.2f} / {_mean_first_audio(shared):.2f} s"
    )
    print(f"    one alone ÷ Transformers, one:        {one_by_one / streams / peer:6.2f}")


def _mean_first_audio(texts: list[SpokenText]) -> float:
    return sum(text.first_s for text in texts) / len(texts)


def _transformers(suite: Suite, model: str) -> float:
    """Seconds that Transformers takes for one text, while the suite is idle."""
    command = ["-c", PEER, str(suite.models / model), TEXTS[0], str(round(FRAMES))]
    return float(json_of(command, "Transformers"))
