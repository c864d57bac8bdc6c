"""What diffusion models have in common here: a request, its state as a value, and how a whole video is made of steps.

Does not know any architecture (`diffusion_families`, `diffusion_pipeline`), nor jobs: whoever calls gets a call back as
steps are done, and stops a request by raising there.
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
"""A clip: [frames, height, width, 3], RGB."""


Picture = npt.NDArray[np.uint8]
"""[height, width, 3], RGB."""


class FrozenRequest(Protocol):
    """A request as it was between two steps."""

    def encode(self, identity: str) -> bytes:
        """As a file, from which the same request, with the same `identity`, can go on."""
        ...


Freeze = Callable[[], FrozenRequest]
"""Says what the request is like now: between two steps."""
OnStep = Callable[[int, int, "Freeze | None"], None]
"""Told how many steps are done, of how many; and with what to freeze the request, where the model can go on from that.
What it raises ends the request."""


@dataclass(frozen=True)
class Resume:
    """A request that was begun before: what `FrozenRequest.encode` made of it."""

    data: bytes
    identity: str


class ResumeError(Exception):
    """Bytes from which nothing can go on: cut, changed, or of another request. The request can begin anew."""


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
    guidance_scale_2: float | None = None
    """Of the second expert, which takes the steps of low noise; None: the first's."""
    adapters: tuple[tuple[str, float], ...] = ()
    """Names of low-rank adapters with their weights, sorted."""
    fps: float | None = None
    """Frames per second, for models that place frames in time by it; None: as the model was trained."""
    image: Image | None = None
    step_cache: StepCache | None = None
    """None: every step is computed."""
    preview_steps: int = 0
    """Steps between two previews; 0: none."""
    on_preview: Callable[[Picture], None] = lambda _: None
    """Given a frame from the middle of the clip. Called between steps, so it does not block."""


EncodedPrompt = tuple[torch.Tensor, ...]
"""An encoded prompt: what a family's text encoders make of a text, its masks among it; each tensor is [1, …]."""


@dataclass(kw_only=True)
class DiffusionState:
    """A request between two steps: all that a step reads and writes, so that it can be batched, saved and resumed.

    Shapes: B = 1, C channels, T latent frames, H and W latent sizes.
    """

    # set once
    request: DiffusionRequest
    generator: torch.Generator
    timesteps: torch.Tensor
    """[steps], descending."""
    prompt: EncodedPrompt
    negative: EncodedPrompt | None
    """None: no guidance, one forward pass a step."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What else the model reads, by a name that its family gives: first frames, masks, positions."""
    # changed by each step
    latents_BCTHW: torch.Tensor
    """float32."""
    scheduler: Any
    """A scheduler of its own: multistep ones remember."""
    memory: dict[str, torch.Tensor | float] = field(default_factory=dict)
    """What steps remember beside the scheduler. Values are replaced, never changed in place."""
    index: int = 0
    # made by each step and read by none
    clean_BCTHW: torch.Tensor | None = None
    """What the last step took the latents of the finished clip for."""

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self.index >= len(self.timesteps)


class VideoModel(Protocol):
    """A loaded model. Safe to use from several threads, one for each request."""

    max_requests: int
    """How many requests it works on at once; more wait."""

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        """Make a video; `on_step` is called as steps are done and may raise to end it.

        Args:
            request: what to make.
            on_step: see `OnStep`.
            resume: where to go on from, for a model that has called `on_step` with something to freeze.

        Raises:
            InvalidRequestError: the model cannot make this (an image for a model that takes none).
            ResumeError: it cannot go on from there.
        """
        ...

    def close(self) -> None:
        """Stop working. Requests that are under way end with an error."""
        ...


def to_frames(clip: npt.NDArray[np.float32]) -> Frames:
    """[frames, height, width, 3] in 0..1 as bytes."""
    frames: Frames = (clip * 255.0).round().clip(0, 255).astype(np.uint8)
    return frames
