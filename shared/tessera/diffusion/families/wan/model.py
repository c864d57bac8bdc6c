"""The step loop of Wan 2.1 and 2.2: text to video and image to video.

Equal to Diffusers' `WanPipeline` and `WanImageToVideoPipeline`, which a test holds. Wan 2.2's large model has two
experts; its small one has a timestep for each token, so that a first frame is optional.

Inputs: `condition`, the first frame's part of the latents; `mask`, 0 where the first frame gives the latents and 1
where they are denoised (Wan 2.2's small model); `image`, features of the first frame (Wan 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import diffusers
import torch

from tessera.diffusion.families.base import FamilyModel, PassRow, PreparedRequest, stack_inputs
from tessera.diffusion.families.wan.short_prompts import accept_short_prompts, pad_prompts, shorten_prompts
from tessera.diffusion.request import DiffusionRequest, DiffusionState, EncodedPrompt
from tessera.diffusion.tiles import tile_pixels
from tessera.hub.clip_memory import Shapes


class WanModel(FamilyModel):
    """A Wan pipeline with our step loop."""

    max_prompt_tokens = 512
    block_list = "blocks"

    def __init__(self, pipe: Any, device: torch.device) -> None:
        super().__init__(pipe, device)
        for expert in self.expert_components():
            wrapped = self.blocks[id(expert)]
            wrapped.prompt_biasing = accept_short_prompts(expert, list(wrapped.blocks))
        self.image_pipe = _image_pipe(pipe)

    @property
    def image_input(self) -> str:
        """Implement `FamilyModel.image_input`."""
        if self.image_pipe is self.pipe:
            return "required"
        return "none" if self.image_pipe is None else "optional"

    def expert_components(self) -> list[Any]:
        """Implement `FamilyModel.expert_components`."""
        return [expert for expert in (self.pipe.transformer, self.pipe.transformer_2) if expert is not None]

    def expert(self, state: DiffusionState) -> Any:
        """Implement `FamilyModel.expert`. Wan 2.2's large model has one expert for high noise, one for low noise."""
        ratio = self.pipe.config.boundary_ratio
        if ratio is None:
            return self.pipe.transformer
        boundary = ratio * state.scheduler.config.num_train_timesteps
        return self.pipe.transformer if state.timesteps[state.index] >= boundary else self.pipe.transformer_2

    def _guidance(self, state: DiffusionState) -> float:
        """Implement `FamilyModel._guidance`. The low-noise expert may have a guidance scale of its own."""
        first, second = state.request.guidance_scale, state.request.guidance_scale_2
        return first if second is None or self.expert(state) is self.pipe.transformer else second

    def shape(self, state: DiffusionState) -> tuple[object, ...]:
        """Implement `FamilyModel.shape`. Prompts are padded to one length in each pass."""
        return (
            id(self.expert(state)),
            state.request.adapters,
            state.latents_BCTHW.shape,
            *((name, value.shape) for name, value in state.inputs.items()),
        )

    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        shape = (request.height, request.width, request.frames)
        if request.image is None:
            channels = self.expert_components()[0].config.in_channels
            latents = self.pipe.prepare_latents(1, channels, *shape, torch.float32, self.device, generator)
            if not self.pipe.config.expand_timesteps:
                return PreparedRequest(latents, {})
            # A first frame that covers nothing, so that requests with and without one share a forward pass.
            return PreparedRequest(
                latents, {"condition": torch.zeros_like(latents), "mask": torch.ones_like(latents[:, :1])}
            )
        assert self.image_pipe is not None
        image = self.pipe.video_processor.preprocess(request.image, height=request.height, width=request.width)
        with self._vae:
            latents, condition, *mask = self.image_pipe.prepare_latents(
                image.to(self.device, torch.float32),
                1,
                self.pipe.vae.config.z_dim,
                *shape,
                torch.float32,
                self.device,
                generator,
            )
        inputs = {"condition": condition}
        if mask:
            inputs["condition"] = condition.expand_as(latents)
            inputs["mask"] = mask[0]
        expert = self.pipe.transformer
        if expert is not None and expert.config.image_dim is not None:
            inputs["image"] = self.pipe.encode_image(request.image, self.device).to(self.dtype)
        return PreparedRequest(latents, inputs)

    def _encode_text(self, text: str) -> EncodedPrompt:
        encoded, _ = self.pipe.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_prompt_tokens,
            device=self.device,
        )
        # The pipeline pads with zeros after the words; a pass adds as many of them as it needs.
        nonzero = encoded[0].any(dim=1).nonzero()
        words = int(nonzero[-1]) + 1 if len(nonzero) else 0
        return (encoded[:, :words].to(self.dtype),)

    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        expert, prompts = self.expert(rows[0].state), [row.prompt[0] for row in rows]
        wrapped = self.blocks[id(expert)]
        if wrapped.prompt_biasing is None or self.shared_by > 1:
            wrapped.prompt_bias, words = None, pad_prompts(prompts, self.max_prompt_tokens)
        else:
            words, wrapped.prompt_bias = shorten_prompts(prompts, self.max_prompt_tokens)
        predicted: torch.Tensor = expert(
            hidden_states=torch.cat([_input(row.state) for row in rows]).to(self.dtype),
            timestep=torch.cat([_timestep(row) for row in rows]),
            encoder_hidden_states=words,
            encoder_hidden_states_image=stack_inputs(rows, "image") if "image" in rows[0].state.inputs else None,
            return_dict=False,
        )[0]
        return predicted

    @property
    def shapes(self) -> Shapes:
        """Implement `FamilyModel.shapes`. One latent frame is decoded at a time."""
        pipe, vae, config = self.pipe, self.pipe.vae.config, self.expert_components()[0].config
        frames, height, width = config.patch_size
        return Shapes(
            frames_multiple=pipe.vae_scale_factor_temporal,
            spatial=pipe.vae_scale_factor_spatial,
            patch=frames * height * width,
            size_multiple=pipe.vae_scale_factor_spatial * width,
            channels=config.in_channels,
            width=config.num_attention_heads * config.attention_head_dim,
            hidden=config.ffn_dim,
            decoder_width=(vae.get("decoder_base_dim") or vae.base_dim) / (vae.get("patch_size") or 1) ** 2,
            decoded_at_once=1,
            bytes_each=self.dtype.itemsize,
            tile_pixels=tile_pixels(self.pipe.vae),
        )

    @property
    def latent_channels(self) -> int:
        """Implement `FamilyModel.latent_channels`."""
        return int(self.pipe.vae.config.z_dim)

    def _latents_to_show(self, state: DiffusionState, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        mask = state.inputs.get("mask")
        return latents_BCTHW if mask is None else _masked(mask, state.inputs["condition"], latents_BCTHW)

    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        latents = latents_BCTHW.to(vae.dtype)
        mean, deviation = self._statistics()
        # Diffusers divides by the reciprocal; the same operations give the same bits.
        decoded: torch.Tensor = vae.decode(latents / (1.0 / deviation) + mean, return_dict=False)[0]
        return decoded

    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._statistics()
        encoded: torch.Tensor = self.pipe.vae.encode(video_BCTHW.to(self.pipe.vae.dtype)).latent_dist.mode()
        return (encoded - mean) / deviation

    def _statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and standard deviation of the VAE's latents, each [1, C, 1, 1, 1]."""
        vae = self.pipe.vae
        mean, deviation = (
            torch.tensor(values, device=self.device, dtype=vae.dtype).view(1, vae.config.z_dim, 1, 1, 1)
            for values in (vae.config.latents_mean, vae.config.latents_std)
        )
        return mean, deviation


def _input(state: DiffusionState) -> torch.Tensor:
    latents, condition, mask = state.latents_BCTHW, state.inputs.get("condition"), state.inputs.get("mask")
    if condition is None:
        return latents
    if mask is not None:
        return _masked(mask, condition, latents)
    return torch.cat([latents, condition], dim=1)


def _masked(mask: torch.Tensor, condition: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    return (1 - mask) * condition + mask * latents


def _timestep(row: PassRow) -> torch.Tensor:
    """Return the row's timestep, [1]; or [1, latent tokens] with 0 for the tokens of a first frame."""
    mask = row.state.inputs.get("mask")
    if mask is None:
        return row.timestep
    return (mask[0][0][:, ::2, ::2] * row.timestep).flatten().unsqueeze(0)


def _image_pipe(pipe: Any) -> Any:
    """Return the pipeline that prepares first frames; None for a model that takes only text.

    Wan 2.2's small model takes both: its directory names `WanPipeline`, and the other class takes the same components.
    """
    if type(pipe).__name__ == "WanImageToVideoPipeline":
        return pipe
    if not pipe.config.expand_timesteps:
        return None
    return diffusers.WanImageToVideoPipeline(**pipe.components, expand_timesteps=True)
