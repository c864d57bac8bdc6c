"""`python -m tessera_video.calibrate`: measures how a model's steps change, and reports what each step cache saves.

The measurement is kept beside the model; without it the step caches `polynomial` and `magnitude` are refused. The
report gives for each cache the speed-up of all steps of one clip, and the clip's PSNR against the one with every step
computed. Knows no jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import time
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from tessera.device.copies import synchronize
from tessera.device.hardware import Device, choose
from tessera.diffusion import calibration as diffusion_calibration
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.request import DiffusionRequest
from tessera.diffusion.step_cache.policies import DEFAULT_THRESHOLDS, StepCache, StepCacheKind, StepCalibration
from tessera.errors import TesseraError
from tessera.hub.store import check, ensure
from tessera.settings.load import load
from tessera.telemetry import configure_logging
from tessera_video.dummy import build
from tessera_video.loading import load_model

logger = logging.getLogger(__name__)

PROMPT = "a red circle moves right on a white background"
"""Prompt of the measured clip when none is given."""
MIN_STEPS = 4
"""Fewest steps of a clip that is measured."""
IDENTICAL_DB = 99.0
"""PSNR in decibels that is reported for identical clips."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, print. Returns the exit status."""
    given = _arguments(arguments)
    settings = load()
    configure_logging("calibrate", level="warning", form=settings.suite.log_format)
    try:
        device = choose(settings.video.device, threads=settings.video.threads)
        if given.dummy:
            return _report(given, _stepped(build(), device), device, "a dummy of 16 layers, width 256")
        found = ensure(given.model or settings.video.model, settings.models_dir, logger.info)
        check(found)
        model = load_model(found.path, device, settings.video)
        if not isinstance(model, FamilyModel):
            print(f"{found.card.id} steps itself (Diffusers' own loop), so it has no step caches", file=sys.stderr)
            return 1
        size = given.size or (found.card.sizes[0] if found.card.sizes else None)
        given.size, given.steps = size or "832x480", given.steps or found.card.steps or 30
        if found.card.guidance_scale is not None and given.guidance is None:
            given.guidance = found.card.guidance_scale
        written = _calibrated(given, model)
        path = diffusion_calibration.write(found.path, written)
        if not given.json:
            print(f"measured over {given.steps} steps; kept in {path}")
        return _report(given, model, device, found.card.id)
    except (TesseraError, OSError) as error:
        print(getattr(error, "message", error), file=sys.stderr)
        return 1


def measure(model: FamilyModel, request: DiffusionRequest, device: Device) -> tuple[float, npt.NDArray[np.float32]]:
    """Denoise one clip. Returns the seconds of all steps, and the clip: float32 [frames, height, width, 3] in 0..1."""
    state = model.begin(request)
    synchronize(device.place)
    started = time.perf_counter()
    while not state.done:
        model.step([state])
    synchronize(device.place)
    return time.perf_counter() - started, model.decode(state)


def psnr(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Return the peak signal-to-noise ratio of two clips in 0..1, in decibels; at most `IDENTICAL_DB`."""
    error = float(np.square(one - other).mean())
    return IDENTICAL_DB if error == 0 else min(IDENTICAL_DB, -10 * float(np.log10(error)))


def _report(given: argparse.Namespace, model: FamilyModel, device: Device, name: str) -> int:
    """Measure every kind of step cache and print a line for each. Returns the exit status."""
    given.size, given.steps = given.size or "128x128", given.steps or 20
    request = _request(given)
    if model.step_calibration is None:
        model.step_calibration = _calibrated(given, model)
    measure(model, dataclasses.replace(request, steps=MIN_STEPS), device)  # warms up
    plain_s, plain = min((measure(model, request, device) for _ in range(given.repeat)), key=lambda made: made[0])
    lines: list[dict[str, Any]] = []
    for kind in get_args(StepCacheKind):
        cache = StepCache(kind, given.threshold or DEFAULT_THRESHOLDS[kind])
        asked = dataclasses.replace(request, step_cache=cache)
        before = sum(blocks.computed for blocks in model.blocks.values())
        made = [measure(model, asked, device) for _ in range(given.repeat)]
        rows = (sum(blocks.computed for blocks in model.blocks.values()) - before) // given.repeat
        seconds, clip = min(made, key=lambda made: made[0])
        lines.append(
            {
                "kind": kind,
                "threshold": cache.threshold,
                "faster": plain_s / seconds,
                "computed": rows / (request.steps * (2 if request.guidance_scale > 1 else 1)),
                "psnr_db": psnr(clip, plain),
            }
        )
    if given.json:
        print(json.dumps({"model": name, "seconds": plain_s, "caches": lines}))
        return 0
    print(
        f"{name}, {given.frames} frames of {given.size}, {given.steps} steps: {plain_s:.2f} s with all steps computed"
    )
    for line in lines:
        print(
            f"  {line['kind']:<12} threshold {line['threshold']:<5g} {line['faster']:5.2f} x as fast, "
            f"{100 * line['computed']:3.0f} % computed, PSNR {line['psnr_db']:4.1f} dB"
        )
    return 0


def _calibrated(given: argparse.Namespace, model: FamilyModel) -> StepCalibration:
    request = _request(given)
    request = dataclasses.replace(request, steps=max(request.steps, MIN_STEPS))
    calibration = diffusion_calibration.calibrate(model, request)
    model.step_calibration = calibration
    return calibration


def _request(given: argparse.Namespace) -> DiffusionRequest:
    width, height = (int(side) for side in (given.size or "128x128").split("x"))
    return DiffusionRequest(
        id="calibration",
        prompt=given.prompt,
        negative_prompt="",
        width=width,
        height=height,
        frames=given.frames,
        steps=given.steps or 20,
        guidance_scale=5.0 if given.guidance is None else given.guidance,
        seed=1,
    )


def _stepped(pipe: Any, device: Device) -> FamilyModel:
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe.to(device.place), device.place)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tessera_video.calibrate", description=__doc__)
    parser.add_argument("--model", help="name of a starter, or a path; by default the video service's model")
    parser.add_argument(
        "--dummy", action="store_true", help="measure a medium-sized model with random weights; nothing is stored"
    )
    parser.add_argument("--prompt", default=PROMPT, help="prompt of the measured clip (%(default)r)")
    parser.add_argument(
        "--size", help="width x height in pixels, as WxH; by default the first size of the model's card"
    )
    parser.add_argument("--frames", type=int, default=17, help="number of frames (%(default)s)")
    parser.add_argument("--steps", type=int, help="number of denoising steps; by default that of the model's card")
    parser.add_argument("--guidance", type=float, help="guidance scale; above 1 each step computes two rows")
    parser.add_argument(
        "--threshold", type=float, help="threshold of all step caches; by default each cache has its own"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="number of measurements, of which the fastest counts (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
