"""Runs any other Diffusers video pipeline through its own `__call__`: one request at a time, with a callback each step.

Knows no architecture: the arguments that a pipeline takes are read from its signature.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tessera.diffusion.request import DiffusionRequest, Frames, OnStep, Resume, ResumeError, to_frames
from tessera.diffusion.tiles import decoding
from tessera.errors import InvalidRequestError

REQUIRED_ARGUMENTS = (
    "prompt",
    "height",
    "width",
    "num_frames",
    "num_inference_steps",
    "generator",
    "callback_on_step_end",
)
"""Arguments that the call of a pipeline must take to be run here."""


def unsupported_reason(pipe: Any) -> str | None:
    """Return why a pipeline cannot be run here; None when it can."""
    missing = [name for name in REQUIRED_ARGUMENTS if name not in _parameters(pipe)]
    return f"its call takes no {', '.join(missing)}" if missing else None


class PipelineModel:
    """A pipeline that runs its own step loop.

    Args:
        pipe: the loaded pipeline, on its device.
        device: the device it is on.
    """

    max_requests = 1

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.pipe = pipe
        self.device = device
        self.decodes_in_tiles: Callable[[DiffusionRequest], bool] = lambda _: False
        self._running = threading.Lock()

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        """Implement `VideoModel.generate`. An exception of `on_step` ends Diffusers' loop."""
        if resume is not None:
            raise ResumeError("a pipeline that steps itself begins anew")
        if request.step_cache is not None:
            raise InvalidRequestError(
                f"{type(self.pipe).__name__} steps itself, so it has no step cache: set `step_cache` to 'off'",
                param="step_cache",
            )
        if request.adapters:
            raise InvalidRequestError(
                f"{type(self.pipe).__name__} steps itself, so it has no adapters: leave `adapters` out",
                param="adapters",
            )
        known = _parameters(self.pipe)
        optional: dict[str, Any] = {"guidance_scale": request.guidance_scale}
        if request.guidance_scale_2 is not None:
            optional["guidance_scale_2"] = request.guidance_scale_2
        if request.negative_prompt:
            optional["negative_prompt"] = request.negative_prompt
        if request.image is not None:
            optional["image"] = request.image
        unknown = [name for name in optional if name not in known]
        if unknown:
            raise InvalidRequestError(f"{type(self.pipe).__name__} takes no {', '.join(unknown)}", param=unknown[0])
        on_step(0, request.steps, None)

        def stepped(_: Any, index: int, __: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            on_step(index + 1, request.steps, None)
            return tensors

        tiles = decoding(getattr(self.pipe, "vae", None), in_tiles=self.decodes_in_tiles(request))
        with self._running, torch.inference_mode(), tiles:
            made = self.pipe(
                prompt=request.prompt,
                height=request.height,
                width=request.width,
                num_frames=request.frames,
                num_inference_steps=request.steps,
                generator=torch.Generator("cpu").manual_seed(request.seed),
                callback_on_step_end=stepped,
                output_type="np",
                **optional,
            )
        return to_frames(np.asarray(made.frames[0], dtype=np.float32))

    def close(self) -> None:
        """Implement `VideoModel.close`. There is no thread to stop."""


def _parameters(pipe: Any) -> set[str]:
    return set(inspect.signature(type(pipe).__call__).parameters)
