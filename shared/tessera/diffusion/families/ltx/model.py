"""The step loop of LTX-Video: text to video and image to video, which are the same weights.

Equal to Diffusers' `LTXPipeline` and `LTXImageToVideoPipeline`, which a test holds. Latents are kept unpacked and are
packed to tokens for the transformer. Decoders that take a timestep get 0, as in Diffusers' pipelines by default.

Inputs: `first`, 1 for tokens of the first frame, which have timestep 0 and are not changed by steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import diffusers
import numpy as np
import torch

from tessera.diffusion.families.base import FamilyModel, PassRow, PreparedRequest, stack_inputs, stack_prompts
from tessera.diffusion.request import DiffusionRequest, DiffusionState, EncodedPrompt
from tessera.diffusion.schedulers import advance_scheduler, predicted_clean
from tessera.diffusion.tiles import tile_pixels
from tessera.hub.clip_memory import Shapes

FRAMES_PER_SECOND = 25.0
"""Frames per second of a request that names none, as in Diffusers."""
DECODED_AT = 0.0
"""Timestep that a decoder gets; at 0 no noise is added to the latents."""


class LTXModel(FamilyModel):
    """An LTX pipeline with our step loop."""

    max_prompt_tokens = 128

    def __init__(self, pipe: Any, device: torch.device) -> None:
        super().__init__(pipe, device)
        needs_image = type(pipe).__name__ == "LTXImageToVideoPipeline"
        self.image_pipe = pipe if needs_image else diffusers.LTXImageToVideoPipeline(**pipe.components)

    @property
    def image_input(self) -> str:
        """Implement `FamilyModel.image_input`."""
        return "required" if self.image_pipe is self.pipe else "optional"

    def shape(self, state: DiffusionState) -> tuple[object, ...]:
        """Implement `FamilyModel.shape`. Positions are in seconds, so requests of one pass have one frame rate."""
        return (*super().shape(state), state.request.fps)

    def _set_timesteps(self, scheduler: Any, request: DiffusionRequest) -> None:
        pipe, config = self.pipe, scheduler.config
        height, width = (side // pipe.vae_spatial_compression_ratio for side in (request.height, request.width))
        tokens = ((request.frames - 1) // pipe.vae_temporal_compression_ratio + 1) * height * width
        least, most = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
        # Resolution-dependent shift, as in Flux: linear in the number of tokens.
        slope = (high - low) / (most - least)
        sigmas = np.linspace(1.0, 1 / request.steps, request.steps)
        scheduler.set_timesteps(sigmas=sigmas, device=self.device, mu=tokens * slope + (low - slope * least))

    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        shape = (request.height, request.width, request.frames)
        channels = self.pipe.transformer.config.in_channels
        grid = self._grid(request)
        if request.image is None:
            packed = self.pipe.prepare_latents(1, channels, *shape, torch.float32, self.device, generator)
            return PreparedRequest(self._unpack(packed, grid), {})
        image = self.pipe.video_processor.preprocess(request.image, height=request.height, width=request.width)
        with self._vae:
            packed, first_BL = self.image_pipe.prepare_latents(
                image.to(self.device, self.pipe.vae.dtype),
                1,
                channels,
                *shape,
                torch.float32,
                self.device,
                generator,
            )
        return PreparedRequest(self._unpack(packed, grid), {"first": first_BL})

    def _encode_text(self, text: str) -> EncodedPrompt:
        embedded, mask, *_ = self.pipe.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_prompt_tokens,
            device=self.device,
        )
        return embedded.to(self.dtype), mask

    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        request = rows[0].state.request
        frames, height, width = grid = self._grid(request)
        timestep = torch.cat([row.timestep for row in rows])
        if "first" in rows[0].state.inputs:
            timestep = timestep.unsqueeze(-1) * (1 - stack_inputs(rows, "first"))
        spatial = self.pipe.vae_spatial_compression_ratio
        seconds = self.pipe.vae_temporal_compression_ratio / (request.fps or FRAMES_PER_SECOND)
        predicted = self.pipe.transformer(
            hidden_states=torch.cat([self._pack(row.state.latents_BCTHW) for row in rows]).to(self.dtype),
            encoder_hidden_states=stack_prompts(rows, 0),
            timestep=timestep,
            encoder_attention_mask=stack_prompts(rows, 1),
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=(seconds, spatial, spatial),
            return_dict=False,
        )[0]
        return self._unpack(predicted.float(), grid)

    def _advance(self, state: DiffusionState, predicted_BCTHW: torch.Tensor) -> None:
        latents = state.latents_BCTHW
        if "first" not in state.inputs:
            state.clean_BCTHW = predicted_clean(state, predicted_BCTHW, latents)
            # A scheduler draws its noise for tokens.
            stepped_BLC = advance_scheduler(state, self._pack(predicted_BCTHW), self._pack(latents))[0]
            state.latents_BCTHW = self._unpack(stepped_BLC, latents.shape[2:])
            return
        clean = predicted_clean(state, predicted_BCTHW[:, :, 1:], latents[:, :, 1:])
        assert clean is not None
        stepped = advance_scheduler(state, predicted_BCTHW[:, :, 1:], latents[:, :, 1:])[0]
        state.latents_BCTHW, state.clean_BCTHW = (
            torch.cat([latents[:, :, :1], rest], dim=2) for rest in (stepped, clean)
        )

    @property
    def shapes(self) -> Shapes:
        """Implement `FamilyModel.shapes`. The whole clip is decoded at once."""
        pipe, config = self.pipe, self.pipe.transformer.config
        width = config.num_attention_heads * config.attention_head_dim
        return Shapes(
            frames_multiple=pipe.vae_temporal_compression_ratio,
            spatial=pipe.vae_spatial_compression_ratio,
            patch=config.patch_size**2 * config.patch_size_t,
            size_multiple=pipe.vae_spatial_compression_ratio * config.patch_size,
            channels=config.in_channels,
            width=width,
            hidden=4 * width,
            decoder_width=min(pipe.vae.config.decoder_block_out_channels) / pipe.vae.config.patch_size**2,
            decoded_at_once=2**31,
            bytes_each=self.dtype.itemsize,
            tile_pixels=tile_pixels(self.pipe.vae),
        )

    @property
    def latent_channels(self) -> int:
        """Implement `FamilyModel.latent_channels`."""
        return int(self.pipe.transformer.config.in_channels)

    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        mean, deviation = (
            values.view(1, -1, 1, 1, 1).to(self.device, torch.float32) for values in (vae.latents_mean, vae.latents_std)
        )
        latents = latents_BCTHW * deviation / vae.config.scaling_factor + mean
        timestep = None
        if vae.config.timestep_conditioning:
            timestep = torch.tensor([DECODED_AT], device=self.device, dtype=vae.dtype)
        decoded: torch.Tensor = vae.decode(latents.to(vae.dtype), timestep, return_dict=False)[0]
        return decoded

    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        encoded = vae.encode(video_BCTHW.to(vae.dtype)).latent_dist.mode().float()
        latents: torch.Tensor = self.image_pipe._normalize_latents(
            encoded, vae.latents_mean, vae.latents_std, vae.config.scaling_factor
        )
        return latents

    def _grid(self, request: DiffusionRequest) -> tuple[int, int, int]:
        """Return the latent frames, height and width of a request."""
        spatial, temporal = self.pipe.vae_spatial_compression_ratio, self.pipe.vae_temporal_compression_ratio
        return (request.frames - 1) // temporal + 1, request.height // spatial, request.width // spatial

    def _pack(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = self.pipe._pack_latents(latents_BCTHW, *self._patches())
        return packed

    def _unpack(self, packed_BLC: torch.Tensor, grid: Sequence[int]) -> torch.Tensor:
        unpacked: torch.Tensor = self.pipe._unpack_latents(packed_BLC, *grid, *self._patches())
        return unpacked

    def _patches(self) -> tuple[int, int]:
        return self.pipe.transformer_spatial_patch_size, self.pipe.transformer_temporal_patch_size
