"""`python -m tessera_video.overhead`: measures the share of a step's time that is spent outside the transformer.

That is batching, guidance, the scheduler, snapshots for failed steps, and reports. Measured on a dummy model whose
transformer is smaller than any real one, so a real model's share is smaller. Knows no jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

from tessera.device.copies import synchronize
from tessera.device.hardware import Device, choose
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.wan.model import WanModel
from tessera.diffusion.request import DiffusionRequest
from tessera_video.dummy import build


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tessera_video.overhead", description=__doc__)
    parser.add_argument("--size", default="832x480", help="width x height of the clip in pixels, as WxH (%(default)s)")
    parser.add_argument("--frames", type=int, default=5, help="number of frames of the clip (%(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="number of steps that are measured (%(default)s)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    width, height = (int(side) for side in given.size.split("x"))
    device = choose(given.device)
    request = DiffusionRequest(
        id="overhead",
        prompt="a red circle moves right",
        negative_prompt="",
        width=width,
        height=height,
        frames=given.frames,
        steps=given.steps + 1,
        guidance_scale=5.0,
        seed=1,
    )
    whole_s, transformer_s = measure(request, device)
    share = 1 - transformer_s / whole_s
    if given.json:
        print(json.dumps({"size": given.size, "frames": given.frames, "step_s": whole_s, "share": share}))
    else:
        print(
            f"{given.frames} frames of {given.size}, a dummy of 16 layers, width 256: a step takes {whole_s:.3f} s, of "
            f"which {100 * share:.2f} % are outside the transformer"
        )
    return 0


def measure(request: DiffusionRequest, device: Device) -> tuple[float, float]:
    """Return the mean seconds of a step, and of the transformer in it, without the first step, which warms up."""
    pipe: Any = build()
    model = WanModel(pipe.to(device.place), device.place)
    forward, passes, steps = pipe.transformer.forward, [], []

    def timed(*args: Any, **kwargs: Any) -> Any:
        synchronize(device.place)
        started = time.perf_counter()
        found = forward(*args, **kwargs)
        synchronize(device.place)
        passes.append(time.perf_counter() - started)
        return found

    pipe.transformer.forward = timed

    def on_step(done: int, total: int, _: object) -> None:
        steps.append(time.perf_counter())
        if done == total:
            raise _EnoughError  # the clip is not needed

    batcher = StepBatcher(model, max_requests=1)
    with contextlib.closing(batcher), contextlib.suppress(_EnoughError):
        batcher.generate(request, on_step)
    # The first call comes before the first step.
    return (steps[-1] - steps[1]) / (len(steps) - 2), sum(passes[1:]) / (len(passes) - 1)


class _EnoughError(Exception):
    """Ends the request after its last step, before the clip is decoded."""


if __name__ == "__main__":
    sys.exit(main())
