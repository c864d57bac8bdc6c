"""The step loop of Wan-class models: text to video and image to video, Wan 2.1 and 2.2 (two experts, or masked steps,
whose model takes a first frame or none).

`step` takes any number of requests: each has its own timestep, so requests at different steps, and the two halves of
guidance, share one forward pass. Equal to Diffusers' `WanPipeline` and `WanImageToVideoPipeline`, which a test holds.
Does not know who waits for the video.

Shapes as in `tessera.engine.diffusion`; N = rows of a forward pass.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import diffusers
import numpy as np
import numpy.typing as npt
import torch

from tessera.engine.diffusion import DiffusionRequest, DiffusionState
from tessera.errors import InvalidRequestError

logger = logging.getLogger(__name__)

MAX_PROMPT_TOKENS = 512
CACHED_PROMPTS = 64


class PromptCache:
    """Encoded prompts by the hash of their text, the least recently used dropped first. Safe in several threads."""

    def __init__(self, capacity: int = CACHED_PROMPTS) -> None:
        self.capacity = capacity
        self.hits = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[str, torch.Tensor] = OrderedDict()

    def get(self, text: str) -> torch.Tensor | None:
        """The encoding of `text`, when it is there."""
        key = self._key(text)
        with self._lock:
            if key not in self._found:
                return None
            self.hits += 1
            self._found.move_to_end(key)
            return self._found[key]

    def put(self, text: str, encoded: torch.Tensor) -> None:
        """Remember an encoding."""
        with self._lock:
            self._found[self._key(text)] = encoded
            while len(self._found) > self.capacity:
                self._found.popitem(last=False)

    @staticmethod
    def _key(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()


class WanModel:
    """A Wan pipeline, stepped by us: a `tessera.engine.diffusion_batching.SteppedModel`.

    Args:
        pipe: the loaded pipeline; its components and its preparation of prompts, images and noise are used.
        device: where it is.
    """

    def __init__(self, pipe: Any, device: torch.device) -> None:
        self.pipe = pipe
        self.device = device
        self.prompts = PromptCache()
        experts = [expert for expert in (pipe.transformer, pipe.transformer_2) if expert is not None]
        self.dtype: torch.dtype = experts[0].dtype
        self.image_pipe = _image_pipe(pipe)
        self.needs_image = self.image_pipe is pipe
        # AutoencoderKLWan keeps a cache on itself while it works.
        self._vae = threading.Lock()
        # A tokenizer sets its padding while it works.
        self._encoding = threading.Lock()

    @torch.inference_mode()
    def begin(self, request: DiffusionRequest) -> DiffusionState:
        """Encode the prompts (or take them from the cache) and draw the first noise.

        Raises:
            InvalidRequestError: an image is missing, or given to a model that takes none.
        """
        if self.needs_image and request.image is None:
            raise InvalidRequestError("this model starts from an image, and none is given", param="input_reference")
        if self.image_pipe is None and request.image is not None:
            raise InvalidRequestError("this model takes no image", param="input_reference")
        scheduler = type(self.pipe.scheduler).from_config(self.pipe.scheduler.config)
        scheduler.set_timesteps(request.steps, device=self.device)
        scheduler.set_begin_index(0)
        # On the CPU, so that a seed means the same noise on every device.
        generator = torch.Generator("cpu").manual_seed(request.seed)
        latents, condition, mask = self._noise(request, generator)
        return DiffusionState(
            request=request,
            generator=generator,
            timesteps=scheduler.timesteps,
            prompt_BLD=self._encode(request.prompt),
            negative_BLD=self._encode(request.negative_prompt) if request.guidance_scale > 1.0 else None,
            condition_BCTHW=condition,
            mask_BCTHW=mask,
            image_BLD=self._image_features(request),
            latents_BCTHW=latents,
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
            for state, noise_BCTHW in zip(batch, self._predict(batch), strict=True):
                timestep = state.timesteps[state.index]
                step = state.scheduler.step(noise_BCTHW, timestep, state.latents_BCTHW, return_dict=False)
                state.latents_BCTHW = step[0]
                state.index += 1

    @torch.inference_mode()
    def decode(self, state: DiffusionState) -> npt.NDArray[np.float32]:
        """The clip of a finished request: float32 [frames, height, width, 3] in 0..1. One at a time."""
        assert state.done
        vae = self.pipe.vae
        latents = state.latents_BCTHW
        if state.mask_BCTHW is not None:
            latents = self._input(state)
        latents = latents.to(vae.dtype)
        mean, deviation = (
            torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, vae.config.z_dim, 1, 1, 1)
            for values in (vae.config.latents_mean, vae.config.latents_std)
        )
        # Diffusers divides by the reciprocal; the same operations give the same bits.
        with self._vae:
            video = vae.decode(latents / (1.0 / deviation) + mean, return_dict=False)[0]
        clip: npt.NDArray[np.float32] = self.pipe.video_processor.postprocess_video(video, output_type="np")[0]
        return clip

    def _encode(self, text: str) -> torch.Tensor:
        known = self.prompts.get(text)
        if known is None:
            with self._encoding:
                length = len(self.pipe.tokenizer(text, truncation=False).input_ids)
            if length > MAX_PROMPT_TOKENS:
                logger.warning("a prompt of %d tokens is cut to the %d that are read", length, MAX_PROMPT_TOKENS)
            with self._encoding:
                encoded, _ = self.pipe.encode_prompt(
                    text,
                    do_classifier_free_guidance=False,
                    max_sequence_length=MAX_PROMPT_TOKENS,
                    device=self.device,
                )
            known = encoded.to(self.dtype)
            self.prompts.put(text, known)
        return known

    def _noise(
        self, request: DiffusionRequest, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """First latents; condition and mask when there is a first frame."""
        shape = (request.height, request.width, request.frames)
        if request.image is None:
            channels = (self.pipe.transformer or self.pipe.transformer_2).config.in_channels
            latents = self.pipe.prepare_latents(1, channels, *shape, torch.float32, self.device, generator)
            mask = torch.ones_like(latents) if self.pipe.config.expand_timesteps else None
            return latents, torch.zeros_like(latents) if mask is not None else None, mask
        assert self.image_pipe is not None
        image = self.pipe.video_processor.preprocess(request.image, height=request.height, width=request.width)
        with self._vae:
            prepared = self.image_pipe.prepare_latents(
                image.to(self.device, torch.float32),
                1,
                self.pipe.vae.config.z_dim,
                *shape,
                torch.float32,
                self.device,
                generator,
            )
        latents, condition, *mask = prepared
        return latents, condition, mask[0] if mask else None

    def _image_features(self, request: DiffusionRequest) -> torch.Tensor | None:
        expert = self.pipe.transformer
        if request.image is None or expert is None or expert.config.image_dim is None:
            return None
        features: torch.Tensor = self.pipe.encode_image(request.image, self.device).to(self.dtype)
        return features

    def _expert(self, state: DiffusionState) -> Any:
        """Wan 2.2's large model has one for high noise and one for low noise."""
        ratio = self.pipe.config.boundary_ratio
        if ratio is None:
            return self.pipe.transformer
        boundary = ratio * state.scheduler.config.num_train_timesteps
        return self.pipe.transformer if state.timesteps[state.index] >= boundary else self.pipe.transformer_2

    def shape(self, state: DiffusionState) -> tuple[object, ...]:
        """What has to be equal for requests to share a forward pass: their expert now, and the shapes of its inputs."""
        return (
            id(self._expert(state)),
            state.latents_BCTHW.shape,
            state.prompt_BLD.shape,
            # With a mask, the model's input has the shape of the latents, whether there is a first frame or none.
            None if state.condition_BCTHW is None or state.mask_BCTHW is not None else state.condition_BCTHW.shape,
            None if state.image_BLD is None else state.image_BLD.shape,
        )

    def cost(self, state: DiffusionState) -> int:
        """Latent numbers that a step of it passes through the transformer."""
        return state.latents_BCTHW.numel() * (1 if state.negative_BLD is None else 2)

    def _predict(self, batch: Sequence[DiffusionState]) -> list[torch.Tensor]:
        """The guided noise of each request, from one forward pass over all rows."""
        rows = [(state, prompt) for state in batch for prompt in (state.prompt_BLD, state.negative_BLD)]
        rows = [(state, prompt) for state, prompt in rows if prompt is not None]
        images = [state.image_BLD for state, _ in rows if state.image_BLD is not None]
        noise_NCTHW = self._expert(batch[0])(
            hidden_states=torch.cat([self._input(state) for state, _ in rows]).to(self.dtype),
            timestep=torch.cat([self._timestep(state) for state, _ in rows]),
            encoder_hidden_states=torch.cat([prompt for _, prompt in rows if prompt is not None]),
            encoder_hidden_states_image=torch.cat(images) if images else None,
            return_dict=False,
        )[0]
        guided: list[torch.Tensor] = []
        row = 0
        for state in batch:
            noise = noise_NCTHW[row : row + 1]
            row += 1
            if state.negative_BLD is not None:
                unguided = noise_NCTHW[row : row + 1]
                row += 1
                noise = unguided + state.request.guidance_scale * (noise - unguided)
            guided.append(noise)
        return guided

    def _input(self, state: DiffusionState) -> torch.Tensor:
        latents, condition, mask = state.latents_BCTHW, state.condition_BCTHW, state.mask_BCTHW
        if mask is not None:
            assert condition is not None
            return (1 - mask) * condition + mask * latents
        return latents if condition is None else torch.cat([latents, condition], dim=1)

    def _timestep(self, state: DiffusionState) -> torch.Tensor:
        """[1], or [1, latent tokens] when the first frame's tokens have timestep 0."""
        timestep = state.timesteps[state.index]
        if state.mask_BCTHW is None:
            return timestep.expand(1)
        return (state.mask_BCTHW[0][0][:, ::2, ::2] * timestep).flatten().unsqueeze(0)


def _image_pipe(pipe: Any) -> Any:
    """The pipeline that prepares first frames; None for one of text alone.

    Wan 2.2's small model is both: its directory names `WanPipeline`, and the other class takes the same parts.
    """
    if type(pipe).__name__ == "WanImageToVideoPipeline":
        return pipe
    if not pipe.config.expand_timesteps:
        return None
    return diffusers.WanImageToVideoPipeline(**pipe.components, expand_timesteps=True)
