"""Benchmark of transcription over HTTP: clips one by one and all at once, against Transformers' own pipeline.

The clips are sentences that the suite's own voice speaks. The peer is the pipeline on the same directory, loaded once
and called for one clip after the other on as many threads as it takes; it neither decodes files nor detects speech.
All numbers come from one run on one machine; read the ratios. Knows nothing about engines.
"""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import TypedDict

import aiohttp

from tessera_bench.child_process import json_of
from tessera_bench.suite import Suite

VOICE = "english-voices"
SENTENCES = (
    "The old man walked home along the river before it was dark.",
    "She put three red apples and some bread on the kitchen table.",
    "We will meet at the station in the morning and take the first train.",
    "There was a small house with a green door at the end of the street.",
)
PEER = """
import json, sys, time, torch, soundfile, transformers
from pathlib import Path
transformers.logging.set_verbosity_error()
directory, rounds, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
kind = json.loads((Path(directory) / "config.json").read_text())["model_type"]
if kind == "whisper":
    tokenizer = transformers.WhisperTokenizer.from_pretrained(directory)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
else:
    tokenizer = transformers.ParakeetTokenizer.from_pretrained(directory)
    model = transformers.ParakeetForCTC.from_pretrained(directory, dtype=torch.float32)
extractor = transformers.AutoFeatureExtractor.from_pretrained(directory)
pipe = transformers.pipeline("automatic-speech-recognition", model=model, tokenizer=tokenizer,
                             feature_extractor=extractor, device="cpu")
def transcribe(name):
    samples, rate = soundfile.read(name, dtype="float32")
    return pipe({"raw": samples, "sampling_rate": rate})["text"]
transcribe(files[0])
took = []
for _ in range(rounds):
    started = time.perf_counter()
    texts = [transcribe(name) for name in files]
    took.append(time.perf_counter() - started)
print(json.dumps({"seconds": min(took), "texts": texts}))
"""


async def run(suite: Suite, folder: Path, *, model: str, clips: int, rounds: int) -> None:
    """Measure, and print a table with ratios.

    Args:
        suite: a running suite with speech and gateway.
        folder: an existing folder for the clips.
        model: name of the transcription model.
        clips: number of clips that are transcribed at once.
        rounds: repetitions of all measurements; the fastest counts.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        files = [await _spoken(session, suite, folder / f"{number}.wav", number) for number in range(clips)]
        await _transcript(session, suite, model, files[0])
        one, together = [], []
        for _ in range(rounds):
            started = time.perf_counter()
            single = [await _transcript(session, suite, model, name) for name in files]
            one.append(time.perf_counter() - started)
            started = time.perf_counter()
            texts = await asyncio.gather(*(_transcript(session, suite, model, name) for name in files))
            together.append(time.perf_counter() - started)
    peer = _transformers(suite, model, files, rounds)
    same = sum(ours.split() == theirs.split() for ours, theirs in zip(texts, peer["texts"], strict=True))
    seconds = [_seconds(name) for name in files]
    print(f"transcription: {model}, {clips} clips of {min(seconds):.1f} to {max(seconds):.1f} s")
    for name, took in (
        (f"{clips} clips at once, through the gateway", min(together)),
        (f"{clips} clips one by one, through the gateway", min(one)),
        (f"Transformers' pipeline, {clips} clips one by one", peer["seconds"]),
    ):
        print(f"  {name:<46} {took:8.2f} s  RTF {took / sum(seconds):.4f}")
    print(f"  Transformers' pipeline ÷ {clips} clips at once:       {peer['seconds'] / min(together):6.2f}")
    print(f"  one by one ÷ {clips} at once:                         {min(one) / min(together):6.2f}")
    print(f"  the same text as Transformers: {same} of {clips}; alone as at once: {single == list(texts)}")


async def _spoken(session: aiohttp.ClientSession, suite: Suite, path: Path, number: int) -> Path:
    text = " ".join(SENTENCES[(number + more) % len(SENTENCES)] for more in range(1 + number % 2))
    body = {"model": VOICE, "input": text, "response_format": "wav", "seed": number}
    async with session.post(f"{suite.url('gateway')}/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        spoken = await response.read()
    # Both sides transcribe at 16 kHz: resampling is not to be measured.
    await asyncio.to_thread(_resampled, spoken, path)
    return path


def _resampled(data: bytes, path: Path) -> None:
    import av  # noqa: PLC0415 - only this function needs it
    import soundfile  # noqa: PLC0415

    with av.open(io.BytesIO(data), "r") as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=16_000)
        frames = [made for frame in container.decode(audio=0) for made in resampler.resample(frame)]
        frames += resampler.resample(None)
        with soundfile.SoundFile(path, "w", 16_000, 1, "PCM_16") as sink:
            for frame in frames:
                sink.write(frame.to_ndarray()[0])


def _seconds(path: Path) -> float:
    return (path.stat().st_size - 44) / 32_000


async def _transcript(session: aiohttp.ClientSession, suite: Suite, model: str, path: Path) -> str:
    form = aiohttp.FormData()
    form.add_field("model", model)
    form.add_field("language", "en")
    form.add_field("file", await asyncio.to_thread(path.read_bytes), filename=path.name)
    async with session.post(f"{suite.url('gateway')}/v1/audio/transcriptions", data=form) as response:
        if response.status != 200:
            raise SystemExit(f"a transcription failed: {await response.text()}")
        return str((await response.json())["text"])


class _PeerResult(TypedDict):
    """What the script `PEER` prints: seconds of its fastest round, and the transcripts."""

    seconds: float
    texts: list[str]


def _transformers(suite: Suite, model: str, files: list[Path], rounds: int) -> _PeerResult:
    """Seconds and transcripts of Transformers on the same directory, while the suite is idle."""
    command = ["-c", PEER, str(suite.models / model), str(rounds), *map(str, files)]
    measured: _PeerResult = json_of(command, "Transformers")
    return measured
