"""The step loop of CogVideoX 1.0 and 1.5: text to video and image to video.

Equal to Diffusers' `CogVideoXPipeline` and `CogVideoXImageToVideoPipeline`, which a test holds. The transformers have
frames before channels, so the two dimensions of latents are swapped for them.

Inputs: `condition_BTCHW`, the first frame's latents. Memory: `denoised`, the last predicted clip, which
`CogVideoXDPMScheduler` takes as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import diffusers
import torch

from tessera.diffusion.families.base import FamilyModel, PassRow, PreparedRequest, stack_inputs, stack_prompts
from tessera.diffusion.request import DiffusionRequest, DiffusionState, EncodedPrompt
from tessera.diffusion.schedulers import advance_scheduler
from tessera.diffusion.tiles import tile_pixels
from tessera.hub.clip_memory import Shapes

OFFSET = 2.0
"""Value that CogVideoX 1.5's image-to-video transformer takes as its `ofs` argument."""


class CogVideoXModel(FamilyModel):
    """A CogVideoX pipeline with our step loop."""

    max_prompt_tokens = 226
    flow = False

    @property
    def image_input(self) -> str:
        """Implement `FamilyModel.image_input`."""
        return "required" if type(self.pipe).__name__ == "CogVideoXImageToVideoPipeline" else "none"

    def _prepare(self, request: DiffusionRequest, generator: torch.Generator) -> PreparedRequest:
        pipe = self.pipe
        frames = request.frames + self._added_frames(request) * pipe.vae_scale_factor_temporal
        size = (frames, request.height, request.width, self.dtype, self.device, generator)
        channels = pipe.transformer.config.in_channels
        if request.image is None:
            noise_BTCHW = pipe.prepare_latents(1, channels, *size)
            return PreparedRequest(_swap_frames(noise_BTCHW).float(), {})
        image = pipe.video_processor.preprocess(request.image, height=request.height, width=request.width)
        with self._vae:
            noise_BTCHW, condition_BTCHW = pipe.prepare_latents(
                image.to(self.device, pipe.vae.dtype), 1, channels // 2, *size
            )
        return PreparedRequest(_swap_frames(noise_BTCHW).float(), {"condition_BTCHW": condition_BTCHW})

    def _encode_text(self, text: str) -> EncodedPrompt:
        embedded, _ = self.pipe.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_prompt_tokens,
            device=self.device,
        )
        return (embedded.to(self.dtype),)

    def _forward(self, rows: Sequence[PassRow]) -> torch.Tensor:
        transformer, first = self.pipe.transformer, rows[0].state
        states = [row.state for row in rows]
        hidden_BTCHW = torch.cat(
            [
                _swap_frames(state.scheduler.scale_model_input(state.latents_BCTHW, state.timesteps[state.index]))
                for state in states
            ]
        ).to(self.dtype)
        optional = {}
        if "condition_BTCHW" in first.inputs:
            hidden_BTCHW = torch.cat([hidden_BTCHW, stack_inputs(rows, "condition_BTCHW")], dim=2)
            if transformer.config.ofs_embed_dim is not None:
                optional["ofs"] = hidden_BTCHW.new_full((1,), OFFSET)
        rotary = None
        if transformer.config.use_rotary_positional_embeddings:
            rotary = self.pipe._prepare_rotary_positional_embeddings(
                first.request.height, first.request.width, hidden_BTCHW.size(1), self.device
            )
        predicted_BTCHW = transformer(
            hidden_states=hidden_BTCHW,
            encoder_hidden_states=stack_prompts(rows, 0),
            timestep=torch.cat([row.timestep for row in rows]),
            image_rotary_emb=rotary,
            return_dict=False,
            **optional,
        )[0]
        return _swap_frames(predicted_BTCHW.float())

    def _advance(self, state: DiffusionState, predicted_BCTHW: torch.Tensor) -> None:
        # A scheduler draws its noise with frames first.
        predicted, latents = _swap_frames(predicted_BCTHW), _swap_frames(state.latents_BCTHW)
        if isinstance(state.scheduler, diffusers.CogVideoXDPMScheduler):
            before = state.timesteps[state.index - 1] if state.index else None
            stepped, *known = state.scheduler.step(
                predicted,
                state.memory.get("denoised"),
                state.timesteps[state.index],
                before,
                latents,
                generator=state.generator,
                return_dict=False,
            )
            state.memory["denoised"] = known[0]
        else:
            stepped, *known = advance_scheduler(state, predicted, latents)
        state.latents_BCTHW, state.clean_BCTHW = (
            _swap_frames(stepped),
            _swap_frames(known[0]) if known else None,
        )

    @property
    def shapes(self) -> Shapes:
        """Implement `FamilyModel.shapes`. Two latent frames are decoded at a time, the first time three."""
        pipe, config = self.pipe, self.pipe.transformer.config
        width = config.num_attention_heads * config.attention_head_dim
        return Shapes(
            frames_multiple=pipe.vae_scale_factor_temporal,
            spatial=pipe.vae_scale_factor_spatial,
            patch=config.patch_size**2 * (config.patch_size_t or 1),
            size_multiple=pipe.vae_scale_factor_spatial * config.patch_size,
            channels=config.in_channels,
            width=width,
            hidden=4 * width,
            decoder_width=min(pipe.vae.config.block_out_channels),
            decoded_at_once=3,
            bytes_each=self.dtype.itemsize,
            tile_pixels=tile_pixels(self.pipe.vae),
            lengths=2 * pipe.vae_scale_factor_temporal,
        )

    @property
    def latent_channels(self) -> int:
        """Implement `FamilyModel.latent_channels`."""
        return int(self.pipe.vae.config.latent_channels)

    def _latents_to_show(self, state: DiffusionState, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        return latents_BCTHW[:, :, self._added_frames(state.request) :]

    def _decode_latents(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = self.pipe.decode_latents(_swap_frames(latents_BCTHW.to(self.pipe.vae.dtype)))
        return decoded

    def _encode_clip(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.pipe.vae.encode(video_BCTHW.to(self.pipe.vae.dtype)).latent_dist.mode()
        return encoded.float() * float(self.pipe.vae_scaling_factor_image)

    def _added_frames(self, request: DiffusionRequest) -> int:
        """Return the number of latent frames that CogVideoX 1.5 puts in front to fill its patches."""
        patch = self.pipe.transformer.config.patch_size_t
        frames = (request.frames - 1) // self.pipe.vae_scale_factor_temporal + 1
        return 0 if patch is None else -frames % patch


def _swap_frames(latents: torch.Tensor) -> torch.Tensor:
    """Swap frames and channels."""
    return latents.transpose(1, 2)
