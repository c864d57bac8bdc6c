"""The step loop of HunyuanVideo 1.5: text to video and image to video.

Equal to Diffusers' `HunyuanVideo15Pipeline` and `HunyuanVideo15ImageToVideoPipeline`, which a test holds. A prompt is
four tensors: the output of a language model and of a byte encoder (for quoted text), each with its mask. Diffusers
keeps the guidance scale in a component, the guider; here it comes from the request as in every family, and a directory
whose guider does more than scale is refused. The blocks are Diffusers' own.

Inputs: `condition`, the first frame's latents with a mask of where they are (zeros for text alone), and `image`, the
first frame's features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import diffusers
import numpy as np
import torch

from tessera.diffusion.families.base import FamilyModel, PassRow, PreparedRequest, stack_inputs, stack_prompts
from tessera.diffusion.request import DiffusionRequest, DiffusionState, EncodedPrompt
from tessera.diffusion.tiles import tile_pixels
from tessera.errors import ModelLoadError
from tessera.hub.clip_memory import Shapes

PLAIN_GUIDANCE = {"guidance_rescale": 0.0, "use_original_formulation": False, "start": 0.0, "stop": 1.0}
"""Settings of a guider with which guidance is `unguided + scale * (guided - unguided)` at every step."""


class HunyuanVideo15Model(FamilyModel):
    """A HunyuanVideo 1.5 pipeline with our step loop.

    Raises:
        ModelLoadError: its guider has settings that the step loop does not support.
    """

    max_prompt_tokens = 1000

    def __init__(self, pipe: Any, device: torch.device) -> None:
        _check_guider(pipe.guider)
        super().__init__(pipe, device)

    @property
    def image_input(self) -> str:
        """Implement `FamilyModel.image_input`."""
        return "required" if type(self.pipe).__name__ == "HunyuanVideo15ImageToVideoPipeline" else "none"

    def _set_timesteps(self, scheduler: Any, request: DiffusionRequest) -> None:
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.0, request.steps + 1)[:-1], device=self.device)

    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        pipe, size = self.pipe, (request.height, request.width)
        latents = pipe.prepare_latents(
            1, pipe.num_channels_latents, *size, request.frames, self.dtype, self.device, generator
        )
        if request.image is None:
            condition, mask = pipe.prepare_cond_latents_and_mask(latents, self.dtype, self.device)
            # Features of zeros tell the model that there is no first frame.
            image = latents.new_zeros(1, pipe.vision_num_semantic_tokens, pipe.vision_states_dim)
        else:
            picture = pipe.video_processor.resize(
                request.image, height=request.height, width=request.width, resize_mode="crop"
            )
            image = pipe.encode_image(picture, batch_size=1, device=self.device, dtype=self.dtype)
            with self._vae:
                condition, mask = pipe.prepare_cond_latents_and_mask(
                    latents, picture, 1, *size, self.dtype, self.device
                )
        inputs = {"condition": torch.cat([condition, mask], dim=1), "image": image}
        return PreparedRequest(latents.float(), inputs)

    def _encode_text(self, text: str) -> EncodedPrompt:
        encoded: EncodedPrompt = self.pipe.encode_prompt(text, device=self.device, dtype=self.dtype)
        return encoded

    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        latents_BCTHW = torch.cat([row.state.latents_BCTHW for row in rows]).to(self.dtype)
        optional = {}
        if self.image_input == "required" and self.pipe.transformer.config.use_meanflow:
            optional["timestep_r"] = torch.cat([_next_timestep(row.state) for row in rows]).to(self.dtype)
        predicted: torch.Tensor = self.pipe.transformer(
            hidden_states=torch.cat([latents_BCTHW, stack_inputs(rows, "condition")], dim=1),
            timestep=torch.cat([row.timestep for row in rows]).to(self.dtype),
            encoder_hidden_states=stack_prompts(rows, 0),
            encoder_attention_mask=stack_prompts(rows, 1),
            encoder_hidden_states_2=stack_prompts(rows, 2),
            encoder_attention_mask_2=stack_prompts(rows, 3),
            image_embeds=stack_inputs(rows, "image"),
            return_dict=False,
            **optional,
        )[0]
        return predicted.float()

    @property
    def shapes(self) -> Shapes:
        """Implement `FamilyModel.shapes`. The whole clip is decoded at once."""
        pipe, config = self.pipe, self.pipe.transformer.config
        width = config.num_attention_heads * config.attention_head_dim
        return Shapes(
            frames_multiple=pipe.vae_scale_factor_temporal,
            spatial=pipe.vae_scale_factor_spatial,
            patch=config.patch_size**2 * config.patch_size_t,
            size_multiple=pipe.vae_scale_factor_spatial * config.patch_size,
            channels=config.in_channels,
            width=width,
            hidden=int(config.mlp_ratio * width),
            decoder_width=pipe.vae.config.block_out_channels[0],
            decoded_at_once=2**31,
            bytes_each=self.dtype.itemsize,
            tile_pixels=tile_pixels(self.pipe.vae),
        )

    @property
    def latent_channels(self) -> int:
        """Implement `FamilyModel.latent_channels`."""
        return int(self.pipe.num_channels_latents)

    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        latents = latents_BCTHW.to(vae.dtype) / vae.config.scaling_factor
        decoded: torch.Tensor = vae.decode(latents, return_dict=False)[0]
        return decoded

    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        vae = self.pipe.vae
        encoded: torch.Tensor = vae.encode(video_BCTHW.to(vae.dtype)).latent_dist.mode()
        return encoded.float() * float(vae.config.scaling_factor)


def _next_timestep(state: DiffusionState) -> torch.Tensor:
    """Return the timestep at which a step ends, [1], which mean-flow models read as well; 0 for the last step."""
    following = state.index + 1
    if following == len(state.timesteps):
        return torch.zeros_like(state.timesteps[:1])
    return state.timesteps[following : following + 1]


def _check_guider(guider: Any) -> None:
    name = type(guider).__name__
    if not isinstance(guider, diffusers.ClassifierFreeGuidance):
        raise ModelLoadError(
            f"the pipeline's guider is a {name}; only ClassifierFreeGuidance has a step loop here: save the pipeline "
            f"with that one"
        )
    for setting, plain in PLAIN_GUIDANCE.items():
        if guider.config[setting] != plain:
            raise ModelLoadError(
                f"the pipeline's guider has {setting}={guider.config[setting]!r}, which the step loop does not do; "
                f"set it to {plain!r} in guider/guider_config.json"
            )
