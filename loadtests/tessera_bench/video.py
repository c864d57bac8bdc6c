"""Benchmark of video jobs over HTTP: one and several at once, against Diffusers' own pipeline.

A job is timed from its request to its last event. The peer is the pipeline on the same directory, loaded once and
called for one prompt after the other on as many threads as it takes; it neither encodes MP4 nor writes checkpoints.
Then come the time that each step cache saves and its PSNR against the clip with every step computed, for the model and
for a larger one with random weights. All numbers come from one run on one machine; read the ratios.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import aiohttp

from tessera_bench.child_process import json_of
from tessera_bench.suite import Suite

PROMPTS = ("a red circle moves right", "a blue star spins", "a green square grows", "a yellow triangle falls")
PEER = """
import json, sys, time, torch, diffusers
directory, asked = sys.argv[1], json.loads(sys.argv[2])
pipe = diffusers.DiffusionPipeline.from_pretrained(directory, torch_dtype=torch.float32, local_files_only=True)
pipe.set_progress_bar_config(disable=True)
def make(prompt, seed):
    return pipe(prompt=prompt, width=asked["width"], height=asked["height"], num_frames=asked["frames"],
                num_inference_steps=asked["steps"], guidance_scale=asked["guidance"],
                generator=torch.Generator().manual_seed(seed))
def measure(prompts):
    started = time.perf_counter()
    for seed, prompt in enumerate(prompts):
        make(prompt, seed)
    return time.perf_counter() - started
measure(asked["prompts"][:1])
print(json.dumps({"one": measure(asked["prompts"][:1]), "all": measure(asked["prompts"])}))
"""


async def run(suite: Suite, *, model: str, jobs: int, steps: int, guidance: float) -> None:
    """Measure, and print a table with ratios.

    Args:
        suite: a running suite with video and gateway.
        model: name of the video model.
        jobs: number of jobs that run at once.
        steps: denoising steps of each job.
        guidance: guidance scale; above 1 each step takes two passes.
    """
    prompts = [f"{PROMPTS[index % len(PROMPTS)]} on a white background, {index}" for index in range(jobs)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        card = await _card(session, suite, model)
        width, height = (int(side) for side in card["sizes"][0].split("x"))
        body = {"model": model, "size": f"{width}x{height}", "steps": steps, "guidance_scale": guidance}
        await _round(session, suite, body, ["warm", *prompts[1:]])
        one = await _round(session, suite, body, prompts[:1])
        several = await _round(session, suite, body, prompts)
        seconds = float((await _job(session, suite, body, prompts[0], 0))["seconds"])
    frames = max(0, round((seconds * card["fps"] - 1) / card["frames_multiple"])) * card["frames_multiple"] + 1
    asked = {
        "width": width,
        "height": height,
        "frames": frames,
        "steps": steps,
        "guidance": guidance,
        "prompts": prompts,
    }
    peer = _diffusers(suite, model, asked)
    print(f"video: {model}, {frames} frames of {width}x{height}, {steps} steps, guidance {guidance:g}")
    for name, took in (
        ("1 job, through the gateway, to its MP4", one),
        (f"{jobs} jobs at once", several),
        ("Diffusers' pipeline, once", peer["one"]),
        (f"Diffusers' pipeline, {jobs} times", peer["all"]),
    ):
        print(f"  {name:<42} {took:8.2f} s")
    print(f"  1 job ÷ Diffusers, once:                {one / peer['one']:6.2f}")
    print(f"  {jobs} jobs ÷ Diffusers, {jobs} times:            {several / peer['all']:6.2f}")
    print(f"  {jobs} jobs ÷ 1 job:                        {several / one:6.2f}")
    for options in (["--model", str(suite.models / model), "--steps", str(steps)], ["--dummy", "--size", "64x64"]):
        print_step_caches(options)
    print_overhead()


def print_overhead() -> None:
    """Print which share of a step at 480p is not spent in the transformer."""
    command = [sys.executable, "-m", "tessera_video.overhead"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the overhead of a step cannot be measured:\n{done.stderr[-2000:]}")
    print(f"overhead: {done.stdout.strip()}")


def print_step_caches(options: list[str]) -> None:
    """Print what each step cache saves and costs, measured while the suite is idle; `options` choose the model."""
    command = ["-m", "tessera_video.calibrate", "--repeat", "3", "--json", *options]
    measured = json_of(command, "the measurement of step caches")
    print(f"step caches: {measured['model']}, {measured['seconds']:.2f} s with all steps computed")
    for line in measured["caches"]:
        print(
            f"  {line['kind']:<12} threshold {line['threshold']:<5g} {line['faster']:5.2f} x as fast, "
            f"{100 * line['computed']:3.0f} % computed, PSNR {line['psnr_db']:4.1f} dB"
        )


async def _card(session: aiohttp.ClientSession, suite: Suite, model: str) -> dict[str, Any]:
    async with session.get(f"{suite.url('gateway')}/v1/models/{model}") as response:
        response.raise_for_status()
        card: dict[str, Any] = (await response.json())["card"]
        return card


async def _round(session: aiohttp.ClientSession, suite: Suite, body: dict[str, Any], prompts: list[str]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(_job(session, suite, body, prompt, seed) for seed, prompt in enumerate(prompts)))
    return time.perf_counter() - started


async def _job(
    session: aiohttp.ClientSession, suite: Suite, body: dict[str, Any], prompt: str, seed: int
) -> dict[str, Any]:
    url = f"{suite.url('gateway')}/v1/videos"
    async with session.post(url, json={**body, "prompt": prompt, "seed": seed}) as response:
        response.raise_for_status()
        video = await response.json()
    # Events, no polling: several clients that ask every few milliseconds would take a core from what is measured.
    async with session.get(f"{url}/{video['id']}/events") as events:
        events.raise_for_status()
        async for line in events.content:
            if line.startswith(b"data:"):
                told = json.loads(line.removeprefix(b"data:"))
                video = told if told.get("object") == "video" else video
    if video["status"] != "completed":
        raise SystemExit(f"a job {video['status']}: {video['error']}")
    return dict(video)


def _diffusers(suite: Suite, model: str, asked: dict[str, Any]) -> dict[str, float]:
    """Seconds of Diffusers on the same directory, while the suite is idle: of one prompt, and of all."""
    command = ["-c", PEER, str(suite.models / model), json.dumps(asked)]
    seconds: dict[str, float] = json_of(command, "Diffusers")
    return seconds
