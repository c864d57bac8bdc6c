"""What diffusion models have in common here: a request, its state as a value, and how a whole video is made of steps.

Does not know any architecture (`diffusion_wan`, `diffusion_pipeline`), nor jobs: whoever calls gets a call back after
each step, and stops a request by raising there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image

Frames = npt.NDArray[np.uint8]
"""A clip: [frames, height, width, 3], RGB."""
OnStep = Callable[[int, int], None]
"""Told how many steps are done, of how many. What it raises ends the request."""


@dataclass(frozen=True, kw_only=True)
class DiffusionRequest:
    """One video to make. Sizes are pixels, and multiples of what the model's card says."""

    id: str
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    steps: int
    guidance_scale: float
    seed: int
    image: Image | None = None


@dataclass(kw_only=True)
class DiffusionState:
    """A request between two steps: all that a step reads and writes, so that it can be batched, saved and resumed.

    Shapes: B = 1, C channels, T latent frames, H and W latent sizes, L prompt tokens, D their width.
    """

    # set once
    request: DiffusionRequest
    generator: torch.Generator
    timesteps: torch.Tensor
    """[steps], descending."""
    prompt_BLD: torch.Tensor
    negative_BLD: torch.Tensor | None
    """None: no guidance, one forward pass a step."""
    condition_BCTHW: torch.Tensor | None = None
    """What a first frame says about the latents."""
    mask_BCTHW: torch.Tensor | None = None
    """0 where the first frame gives the latents, 1 where they are to be denoised (Wan 2.2's small model)."""
    image_BLD: torch.Tensor | None = None
    """Features of the first frame (Wan 2.1)."""
    # changed by each step
    latents_BCTHW: torch.Tensor
    """float32."""
    scheduler: Any
    """A scheduler of its own: multistep ones remember."""
    index: int = 0

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self.index >= len(self.timesteps)


class VideoModel(Protocol):
    """A loaded model. One request at a time unless it says otherwise."""

    def generate(self, request: DiffusionRequest, on_step: OnStep) -> Frames:
        """Make a video; `on_step` is called after each step and may raise to end it.

        Raises:
            InvalidRequestError: the model cannot make this (an image for a model that takes none).
        """
        ...


def to_frames(clip: npt.NDArray[np.float32]) -> Frames:
    """[frames, height, width, 3] in 0..1 as bytes."""
    frames: Frames = (clip * 255.0).round().clip(0, 255).astype(np.uint8)
    return frames
