"""Types that all diffusion models share: a request, its state between two steps, and the interface of a loaded model.

A caller is called back after each denoising step and ends its request by raising there. Knows no architecture
(`tessera.diffusion.families` does) and no jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image

from tessera.diffusion.step_cache.policies import StepCache

Frames = npt.NDArray[np.uint8]
"""A clip: uint8 [frames, height, width, 3], RGB."""
Picture = npt.NDArray[np.uint8]
"""One frame or image: uint8 [height, width, 3], RGB."""


class FrozenRequest(Protocol):
    """A copy of a request's state between two steps."""

    def encode(self, identity: str) -> bytes:
        """Return a checkpoint file, from which a request with the same `identity` can resume."""
        ...


Freeze = Callable[[], FrozenRequest]
"""Takes a copy of the request's state. Valid only while `OnStep` runs, between two steps."""
OnStep = Callable[[int, int, "Freeze | None"], None]
"""Called with the number of finished steps, the number of all steps, and a function that freezes the request (None if
the model cannot resume). An exception that it raises ends the request."""


@dataclass(frozen=True)
class Resume:
    """A checkpoint to resume from: `data` from `FrozenRequest.encode`, and the `identity` that was given to it."""

    data: bytes
    identity: str
    """Equal for equal request, model weights and libraries. Another identity is refused."""


class ResumeError(Exception):
    """The checkpoint is truncated, changed, or of another request. The request can start again from its first step."""


@dataclass(frozen=True, kw_only=True)
class DiffusionRequest:
    """One video to make. Width and height are pixels, and multiples of the `size_multiple` in the model's card."""

    id: str
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    steps: int
    guidance_scale: float
    seed: int
    guidance_scale_2: float | None = None
    """Guidance scale of the second expert, which denoises the low-noise timesteps; None takes `guidance_scale`."""
    adapters: tuple[tuple[str, float], ...] = ()
    """Low-rank adapters as (name, weight), sorted by name."""
    fps: float | None = None
    """Frames per second, read by models that encode a frame's time; None takes the rate the model was trained with."""
    image: Image | None = None
    step_cache: StepCache | None = None
    """Step cache by which steps may be skipped; None computes every step."""
    preview_steps: int = 0
    """Steps between two previews; 0 makes none."""
    on_preview: Callable[[Picture], None] = lambda _: None
    """Called between steps with a frame from the middle of the clip. Must not block."""


EncodedPrompt = tuple[torch.Tensor, ...]
"""Output of a family's text encoders for one prompt, attention masks included; every tensor is [1, …]."""


@dataclass(kw_only=True)
class DiffusionState:
    """A request between two steps: everything that a step reads and writes, so it can be batched, saved and resumed.

    Shapes: B = 1, C channels, T latent frames, H and W latent height and width.
    """

    # set when the request begins
    request: DiffusionRequest
    generator: torch.Generator
    timesteps: torch.Tensor
    """Timesteps [steps], descending."""
    prompt: EncodedPrompt
    negative: EncodedPrompt | None
    """Encoded negative prompt; None without guidance, which takes one row of a pass instead of two."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further inputs of the model, by names that its family defines: first frames, masks, features; each [1, …]."""
    # changed by each step
    latents_BCTHW: torch.Tensor
    """Noisy latents, float32."""
    scheduler: Any
    """Diffusers scheduler of this request alone, because multistep schedulers keep earlier predictions."""
    memory: dict[str, torch.Tensor | float] = field(default_factory=dict)
    """State of steps beside the scheduler, such as step caches. Values are replaced, never changed in place."""
    index: int = 0
    """Finished steps: 0 to len(timesteps)."""
    # written by each step, read only by previews
    clean_BCTHW: torch.Tensor | None = None
    """Latents of the finished clip as the last step predicted them; None before the first step."""

    @property
    def done(self) -> bool:
        """Whether all steps are finished."""
        return self.index >= len(self.timesteps)


class VideoModel(Protocol):
    """A loaded model. Thread-safe: one thread calls `generate` for each request."""

    max_requests: int
    """Requests that the model works on at once; further ones wait."""

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        """Make a video and return its frames.

        Args:
            request: the video to make.
            on_step: called after each step; ends the request by raising, see `OnStep`.
            resume: checkpoint to resume from. Only for models that give `on_step` a `Freeze`.

        Raises:
            InvalidRequestError: the model cannot make this (an image for a model that takes none).
            ResumeError: the checkpoint does not fit.
        """
        ...

    def close(self) -> None:
        """Stop working. Requests in progress end with an error."""
        ...


def to_frames(clip: npt.NDArray[np.float32]) -> Frames:
    """Convert a clip [frames, height, width, 3] from float32 in 0..1 to uint8."""
    frames: Frames = (clip * 255.0).round().clip(0, 255).astype(np.uint8)
    return frames
