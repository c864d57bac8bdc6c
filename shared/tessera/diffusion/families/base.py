"""The step loop that all families of video models share. A family's own part is a subclass, in `<family>/model.py`.

A step takes any number of requests: each row of a forward pass has its own timestep, so requests at different steps and
the two halves of guidance share one pass. Knows no architecture, and not who waits for the video.

Shapes: as in `tessera.diffusion.request`; N rows of a forward pass.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from tessera.diffusion.checks import check_request
from tessera.diffusion.preview import LatentColours
from tessera.diffusion.prompt_cache import PromptCache
from tessera.diffusion.request import DiffusionRequest, DiffusionState, EncodedPrompt, Picture
from tessera.diffusion.schedulers import advance_scheduler, check_scheduler, predicted_clean, start_scheduler
from tessera.diffusion.step_cache.blocks import CachedRow, SkippingBlocks
from tessera.diffusion.step_cache.policies import PREFIX, RowMemory, StepCalibration, policy_of
from tessera.diffusion.tiles import decoding
from tessera.hub.clip_memory import Shapes
from tessera.models.lora import Adapters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassRow:
    """One row of a forward pass: a request with its prompt or its negative prompt."""

    state: DiffusionState
    prompt: EncodedPrompt
    half: Literal["prompt", "negative"] = "prompt"
    """Half of guidance that the row computes."""

    @property
    def timestep(self) -> torch.Tensor:
        """Timestep of the current step, [1]."""
        return self.state.timesteps[self.state.index].expand(1)


@dataclass(frozen=True)
class PreparedRequest:
    """The part of a new request's state that depends on the family."""

    latents_BCTHW: torch.Tensor
    """Initial noise, float32."""
    inputs: dict[str, torch.Tensor]
    """Further inputs of the model, see `DiffusionState.inputs`."""


class FamilyModel(ABC):
    """A loaded pipeline whose step loop is ours: a `tessera.diffusion.batcher.SteppedModel`.

    Args:
        pipe: a Diffusers pipeline; its components and its preparation of prompts, images and noise are used.
        device: the device that computes.

    Raises:
        ModelLoadError: the pipeline's scheduler is not for such a model.
    """

    max_prompt_tokens: ClassVar[int]
    """Tokens of a prompt that are read, as in Diffusers' pipeline by default; longer prompts are cut."""
    block_list: ClassVar[str] = "transformer_blocks"
    """Name of the attribute that holds the blocks of the family's transformers."""
    flow: ClassVar[bool] = True
    """Whether the model predicts a flow; otherwise noise or a velocity."""

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.pipe = pipe
        self.device = device
        self.prompts = PromptCache()
        self.adapters = Adapters()
        self.decodes_in_tiles: Callable[[DiffusionRequest], bool] = lambda _: False
        """Whether a request's clip is decoded in tiles; set by the worker."""
        self.step_calibration: StepCalibration | None = None
        """Measurement for step caches, set by the worker; None allows only the step cache `first_block`."""
        self.shared_by = 1
        """Number of devices that compute each pass together."""
        self.blocks = {id(expert): self._wrap_blocks(expert) for expert in self.expert_components()}
        """The wrapped blocks of each transformer by its `id`."""
        self.dtype: torch.dtype = self.expert_components()[0].dtype
        self._colours: LatentColours | None = None
        # One at a time: a VAE may cache frames on itself while it works, and one clip fills a device.
        self._vae = threading.Lock()
        # A tokenizer changes its own padding settings while it works.
        self._encoding = threading.Lock()
        check_scheduler(pipe.scheduler, flow=self.flow, begin=self._set_timesteps, advance=self._advance)

    # defined by each family

    @property
    @abstractmethod
    def image_input(self) -> str:
        """Whether the model takes a first frame: "none", "optional" or "required"."""

    @abstractmethod
    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        """Draw the initial noise and compute the further inputs, in Diffusers' order of random draws."""

    @abstractmethod
    def _encode_text(self, text: str) -> EncodedPrompt:
        """Encode a text as the pipeline does, in the model's dtype."""

    @abstractmethod
    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        """Run one forward pass over rows of equal shapes. Returns the predictions [N, C, T, H, W]."""

    @abstractmethod
    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode normalized latents to pixels [1, 3, frames, height, width] in -1..1."""

    @abstractmethod
    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """Encode pixels in -1..1 to normalized latents."""

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Sizes of the model from which the memory of a clip is estimated."""

    @property
    @abstractmethod
    def latent_channels(self) -> int:
        """Number of latent channels."""

    def _latents_to_show(self, state: DiffusionState, latents_BCTHW: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return the latents of a request that are decoded or previewed."""
        return latents_BCTHW

    def expert_components(self) -> list[Any]:
        """Return the transformers that denoise: more than one when ranges of timesteps have experts."""
        return [self.pipe.transformer]

    def linear_layers(self, expert: Any) -> dict[str, Any]:
        """Return the linear layers of a transformer by their names in Diffusers' class."""
        ours, theirs = f"{self.block_list}.0.blocks.", f"{self.block_list}."
        return {
            theirs + name.removeprefix(ours) if name.startswith(ours) else name: module
            for name, module in expert.named_modules()
            if hasattr(module, "in_features") and hasattr(module, "out_features")
        }

    def expert(self, state: DiffusionState) -> Any:  # noqa: ARG002 - of families with several
        """Return the transformer of a request's next step."""
        return self.pipe.transformer

    def _guidance(self, state: DiffusionState) -> float:
        """Return the guidance scale of a request's next step. At 1 the negative prompt has no effect."""
        return state.request.guidance_scale

    def _set_timesteps(self, scheduler: Any, request: DiffusionRequest) -> None:
        scheduler.set_timesteps(request.steps, device=self.device)

    def _advance(self, state: DiffusionState, predicted_BCTHW: torch.Tensor) -> None:
        """Set the latents after a step; the caller counts `index`."""
        state.clean_BCTHW = predicted_clean(state, predicted_BCTHW, state.latents_BCTHW)
        state.latents_BCTHW = advance_scheduler(state, predicted_BCTHW, state.latents_BCTHW)[0]

    # shared by all families

    @torch.inference_mode()
    def begin(self, request: DiffusionRequest) -> DiffusionState:
        """Encode the prompts (or take them from the cache) and draw the initial noise.

        Raises:
            InvalidRequestError: the model cannot make this; see `check_request` and `start_scheduler`.
        """
        check_request(
            request,
            image_input=self.image_input,
            experts=len(self.expert_components()),
            adapters=self.adapters,
            calibrated=self.step_calibration is not None,
            shared_by=self.shared_by,
        )
        scheduler = start_scheduler(self.pipe.scheduler, request, self._set_timesteps)
        # On the CPU, so that a seed means the same noise on every device.
        generator = torch.Generator("cpu").manual_seed(request.seed)
        prepared = self._prepare(request, generator)
        return DiffusionState(
            request=request,
            generator=generator,
            timesteps=scheduler.timesteps,
            prompt=self._encode(request.prompt),
            negative=self._encode(request.negative_prompt) if request.guidance_scale > 1.0 else None,
            inputs=prepared.inputs,
            latents_BCTHW=prepared.latents_BCTHW,
            scheduler=scheduler,
        )

    @torch.inference_mode()
    def step(self, states: Sequence[DiffusionState]) -> None:
        """Denoise each request by one step. Requests of equal shapes and the same expert share a forward pass."""
        batches: defaultdict[tuple[object, ...], list[DiffusionState]] = defaultdict(list)
        for state in states:
            assert not state.done
            batches[self.shape(state)].append(state)
        for batch in batches.values():
            for state, predicted_BCTHW in zip(batch, self._guided(batch), strict=True):
                self._advance(state, predicted_BCTHW)
                state.index += 1

    @torch.inference_mode()
    def decode(self, state: DiffusionState) -> npt.NDArray[np.float32]:
        """Decode a finished request to float32 [frames, height, width, 3] in 0..1. The VAE decodes one at a time."""
        assert state.done
        with self._vae, decoding(self.pipe.vae, in_tiles=self.decodes_in_tiles(state.request)):
            video = self._decode_latents(self._latents_to_show(state, state.latents_BCTHW))
        clip: npt.NDArray[np.float32] = self.pipe.video_processor.postprocess_video(video, output_type="np")[0]
        # A VAE whose latent frames come in pairs may decode more frames than requested.
        return clip[: state.request.frames]

    @torch.inference_mode()
    def fit_colours(self) -> LatentColours:
        """Fit the colours of latents to the VAE, once: at start, so that the first preview does not wait for it."""
        if self._colours is None:
            with self._vae:
                self._colours = LatentColours.fit(
                    self._decode_latents, self._encode_clip, self.latent_channels, self.device
                )
        return self._colours

    @torch.inference_mode()
    def preview(self, state: DiffusionState) -> Picture:
        """Return a frame from the middle of the clip as the last step predicted it, one pixel per latent."""
        latents = self._latents_to_show(state, state.latents_BCTHW if state.clean_BCTHW is None else state.clean_BCTHW)
        return self.fit_colours().to_rgb(latents[0, :, latents.shape[2] // 2])

    def shape(self, state: DiffusionState) -> tuple[object, ...]:
        """Return what must be equal for requests to share a pass: current expert, adapters, shapes of inputs."""
        return (
            id(self.expert(state)),
            state.request.adapters,
            state.latents_BCTHW.shape,
            *(part.shape for part in state.prompt),
            *((name, value.shape) for name, value in state.inputs.items()),
        )

    def cost(self, state: DiffusionState) -> int:
        """Return the number of latent elements that one step passes through the transformer."""
        return state.latents_BCTHW.numel() * (1 if state.negative is None else 2)

    def _guided(self, batch: Sequence[DiffusionState]) -> list[torch.Tensor]:
        """Return the guided prediction for each request, from one forward pass over all rows."""
        rows = []
        for state in batch:
            rows.append(PassRow(state, state.prompt))
            negative = self._negative(state)
            if negative is not None:
                rows.append(PassRow(state, negative, "negative"))
        expert = self.expert(batch[0])
        cached = [self._cached(row, expert) for row in rows]
        with self.adapters.running(batch[0].request.adapters), self.blocks[id(expert)].running(cached):
            predicted = iter(torch.split(self._forward(rows), 1))
        guided: list[torch.Tensor] = []
        for state in batch:
            noise = next(predicted)
            if self._negative(state) is not None:
                unguided = next(predicted)
                noise = unguided + self._guidance(state) * (noise - unguided)
            guided.append(noise)
        return guided

    def _negative(self, state: DiffusionState) -> EncodedPrompt | None:
        """Return the prompt that the next step is guided away from; None when the step is not guided."""
        return None if self._guidance(state) == 1.0 else state.negative

    def _cached(self, row: PassRow, expert: Any) -> CachedRow | None:
        """Return the row with the step cache that its request asks for; None without one."""
        state = row.state
        if state.request.step_cache is None:
            return None
        number, known = float(self.expert_components().index(expert)), PREFIX + "expert"
        if state.memory.get(known) != number:
            # A residual of one expert says nothing about another expert.
            state.memory = {name: value for name, value in state.memory.items() if not name.startswith(PREFIX)}
            state.memory[known] = number
        policy = policy_of(
            state.request.step_cache, self.step_calibration, step=state.index, steps=len(state.timesteps)
        )
        return CachedRow(RowMemory(state.memory, row.half), policy)

    def _wrap_blocks(self, expert: Any) -> SkippingBlocks:
        blocks = getattr(expert, self.block_list)
        if isinstance(blocks[0], SkippingBlocks):
            return blocks[0]
        wrapped = SkippingBlocks(blocks)
        setattr(expert, self.block_list, torch.nn.ModuleList([wrapped]))
        return wrapped

    def _encode(self, text: str) -> EncodedPrompt:
        known = self.prompts.get(text)
        if known is None:
            with self._encoding:
                length = len(self.pipe.tokenizer(text, truncation=False).input_ids)
                if length > self.max_prompt_tokens:
                    logger.warning(
                        "a prompt of %d tokens is cut to the %d that are read", length, self.max_prompt_tokens
                    )
                known = self._encode_text(text)
            self.prompts.put(text, known)
        return known


def stack_prompts(rows: Sequence[PassRow], index: int) -> torch.Tensor:
    """Return one tensor of all rows' encoded prompts, [N, …]."""
    return torch.cat([row.prompt[index] for row in rows])


def stack_inputs(rows: Sequence[PassRow], name: str) -> torch.Tensor:
    """Return one of the further inputs of all rows, [N, …]."""
    return torch.cat([row.state.inputs[name] for row in rows])
