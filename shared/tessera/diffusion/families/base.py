"""A pipeline stepped by us: what every family of video models shares. A family's own part is a subclass, one a file.

A step takes any number of requests: each row of a forward pass has its own timestep, so requests at different steps,
and the two halves of guidance, share one. Does not know an architecture, nor who waits for the video.

Shapes as in `tessera.diffusion.request`; N = rows of a forward pass.
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
    """One row of a forward pass: a request, with its prompt or its negative one."""

    state: DiffusionState
    prompt: EncodedPrompt
    half: Literal["prompt", "negative"] = "prompt"

    @property
    def timestep(self) -> torch.Tensor:
        """[1]: of the step that is made."""
        return self.state.timesteps[self.state.index].expand(1)


@dataclass(frozen=True)
class PreparedRequest:
    """What a family prepares of a request."""

    latents_BCTHW: torch.Tensor
    """float32 noise."""
    inputs: dict[str, torch.Tensor]
    """See `DiffusionState.inputs`."""


class FamilyModel(ABC):
    """A loaded pipeline: a `tessera.diffusion.batcher.SteppedModel`.

    Args:
        pipe: its components and its preparation of prompts, images and noise are used.
        device: where it is.

    Raises:
        ModelLoadError: the pipeline's scheduler is not for such a model.
    """

    max_prompt_tokens: ClassVar[int]
    """As many as the pipeline reads by default."""
    block_list: ClassVar[str] = "transformer_blocks"
    """What a transformer of the family calls its blocks."""
    flow: ClassVar[bool] = True
    """Whether the model predicts a flow."""

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.pipe = pipe
        self.device = device
        self.prompts = PromptCache()
        self.adapters = Adapters()
        self.decodes_in_tiles: Callable[[DiffusionRequest], bool] = lambda _: False
        self.step_calibration: StepCalibration | None = None
        self.shared_by = 1
        """Devices that compute each pass together."""
        self.blocks = {id(expert): self._one_of(expert) for expert in self.expert_components()}
        self.dtype: torch.dtype = self.expert_components()[0].dtype
        self._colours: LatentColours | None = None
        # A VAE may keep a cache on itself while it works, and fills a device by itself.
        self._vae = threading.Lock()
        # A tokenizer sets its padding while it works.
        self._encoding = threading.Lock()
        check_scheduler(pipe.scheduler, flow=self.flow, begin=self._set_timesteps, advance=self._advance)

    # what a family says of itself

    @property
    @abstractmethod
    def image_input(self) -> str:
        """Whether it starts from a first frame: "none", "optional" or "required"."""

    @abstractmethod
    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        """The first noise, and what else the model reads, drawn and encoded in Diffusers' order."""

    @abstractmethod
    def _encode_text(self, text: str) -> EncodedPrompt:
        """As the pipeline does, in the model's dtype."""

    @abstractmethod
    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        """[N, C, T, H, W]: what the model predicts, from one forward pass over rows of equal shapes."""

    @abstractmethod
    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """The decoder: [1, 3, frames, height, width] in -1..1, of normalized latents."""

    @abstractmethod
    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """The encoder: normalized latents of a clip in -1..1."""

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """What tells how much memory a clip takes."""

    @property
    @abstractmethod
    def latent_channels(self) -> int:
        """C."""

    def _latents_to_show(self, state: DiffusionState, latents_BCTHW: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Which latents of a request are painted."""
        return latents_BCTHW

    def expert_components(self) -> list[Any]:
        """The transformers that denoise: more than one where timesteps have experts."""
        return [self.pipe.transformer]

    def linear_layers(self, expert: Any) -> dict[str, Any]:
        """Linear layers of a transformer by the names that they have in its own class."""
        ours, theirs = f"{self.block_list}.0.blocks.", f"{self.block_list}."
        return {
            theirs + name.removeprefix(ours) if name.startswith(ours) else name: module
            for name, module in expert.named_modules()
            if hasattr(module, "in_features") and hasattr(module, "out_features")
        }

    def expert(self, state: DiffusionState) -> Any:  # noqa: ARG002 - of families with several
        """The transformer of a request's next step."""
        return self.pipe.transformer

    def _guidance(self, state: DiffusionState) -> float:
        """The scale of a request's next step. At 1 the negative prompt says nothing."""
        return state.request.guidance_scale

    def _set_timesteps(self, scheduler: Any, request: DiffusionRequest) -> None:
        scheduler.set_timesteps(request.steps, device=self.device)

    def _advance(self, state: DiffusionState, predicted_BCTHW: torch.Tensor) -> None:
        """The latents after a step; `index` is counted elsewhere."""
        state.clean_BCTHW = predicted_clean(state, predicted_BCTHW, state.latents_BCTHW)
        state.latents_BCTHW = advance_scheduler(state, predicted_BCTHW, state.latents_BCTHW)[0]

    # what all share

    @torch.inference_mode()
    def begin(self, request: DiffusionRequest) -> DiffusionState:
        """Encode the prompts (or take them from the cache) and draw the first noise.

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
        """The clip of a finished request: float32 [frames, height, width, 3] in 0..1. One at a time."""
        assert state.done
        with self._vae, decoding(self.pipe.vae, in_tiles=self.decodes_in_tiles(state.request)):
            video = self._decode_latents(self._latents_to_show(state, state.latents_BCTHW))
        clip: npt.NDArray[np.float32] = self.pipe.video_processor.postprocess_video(video, output_type="np")[0]
        # A VAE whose latent frames come in pairs may make more than asked for.
        return clip[: state.request.frames]

    @torch.inference_mode()
    def fit_colours(self) -> LatentColours:
        """Learn what latents look like, from the VAE: before the first preview, which waits for it otherwise."""
        if self._colours is None:
            with self._vae:
                self._colours = LatentColours.fit(
                    self._decode_latents, self._encode_clip, self.latent_channels, self.device
                )
        return self._colours

    @torch.inference_mode()
    def preview(self, state: DiffusionState) -> Picture:
        """A frame from the middle of the clip as the last step took it to be, a pixel for each latent."""
        latents = self._latents_to_show(state, state.latents_BCTHW if state.clean_BCTHW is None else state.clean_BCTHW)
        return self.fit_colours().paint(latents[0, :, latents.shape[2] // 2])

    def shape(self, state: DiffusionState) -> tuple[object, ...]:
        """What has to be equal for requests to share a pass: their expert now, adapters, and the shapes of inputs."""
        return (
            id(self.expert(state)),
            state.request.adapters,
            state.latents_BCTHW.shape,
            *(part.shape for part in state.prompt),
            *((name, value.shape) for name, value in state.inputs.items()),
        )

    def cost(self, state: DiffusionState) -> int:
        """Latent numbers that a step of it passes through the transformer."""
        return state.latents_BCTHW.numel() * (1 if state.negative is None else 2)

    def _guided(self, batch: Sequence[DiffusionState]) -> list[torch.Tensor]:
        """What is predicted for each request, guided, from one forward pass over all rows."""
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
        """What the next step is guided away from, where it is guided."""
        return None if self._guidance(state) == 1.0 else state.negative

    def _cached(self, row: PassRow, expert: Any) -> CachedRow | None:
        """With the step cache that the row's request asks for."""
        state = row.state
        if state.request.step_cache is None:
            return None
        number, known = float(self.expert_components().index(expert)), PREFIX + "expert"
        if state.memory.get(known) != number:
            # What one expert has computed says nothing of another.
            state.memory = {name: value for name, value in state.memory.items() if not name.startswith(PREFIX)}
            state.memory[known] = number
        policy = policy_of(
            state.request.step_cache, self.step_calibration, step=state.index, steps=len(state.timesteps)
        )
        return CachedRow(RowMemory(state.memory, row.half), policy)

    def _one_of(self, expert: Any) -> SkippingBlocks:
        blocks = getattr(expert, self.block_list)
        if isinstance(blocks[0], SkippingBlocks):
            return blocks[0]
        one = SkippingBlocks(blocks)
        setattr(expert, self.block_list, torch.nn.ModuleList([one]))
        return one

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
    """One tensor of all rows' prompts, [N, …]."""
    return torch.cat([row.prompt[index] for row in rows])


def stack_inputs(rows: Sequence[PassRow], name: str) -> torch.Tensor:
    """An input of all rows, [N, …]."""
    return torch.cat([row.state.inputs[name] for row in rows])
