"""Tiny Diffusers pipelines with random weights, one of every family that the video engine steps itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import torch
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    ByT5Tokenizer,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen2Tokenizer,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from tessera.diffusion.request import DiffusionRequest


def request(**values: Any) -> DiffusionRequest:
    """A small clip: 32 x 32 pixels, 9 frames, 4 steps, guided."""
    defaults = {"id": "r", "prompt": "a cat", "negative_prompt": "", "frames": 9, "steps": 4, "guidance_scale": 5.0}
    return DiffusionRequest(**{**defaults, "width": 32, "height": 32, "seed": 1, **values})


def picture() -> Image.Image:
    """A first frame."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))


def _t5() -> T5EncoderModel:
    config = T5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return T5EncoderModel(config).eval()


def ltx(kind: Any = diffusers.LTXPipeline, *, decodes_at_a_timestep: bool = False) -> Any:
    """An LTX pipeline: 4 frames a latent frame, 4 pixels a latent's side."""
    torch.manual_seed(0)
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=32,
    )
    vae = diffusers.AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False, False, False, False, False),
        upsample_residual=(False, False, False, False),
        upsample_factor=(1, 1, 1, 1),
        timestep_conditioning=decodes_at_a_timestep,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.1)
    return _quiet(kind(scheduler, vae.eval(), _t5(), ByT5Tokenizer(), transformer.eval()))


def cogvideox(kind: Any = diffusers.CogVideoXPipeline, *, newer: bool = False) -> Any:
    """A CogVideoX pipeline: 1.0 with DDIM, or 1.5 with rotary positions, patches in time and DPM."""
    torch.manual_seed(0)
    from_image = kind is diffusers.CogVideoXImageToVideoPipeline
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=8 if from_image else 4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=32,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        sample_frames=9,
        patch_size=2,
        patch_size_t=2 if newer else None,
        temporal_compression_ratio=4,
        max_text_seq_length=226,
        use_rotary_positional_embeddings=newer or from_image,
        ofs_embed_dim=2 if newer and from_image else None,
    )
    vae = diffusers.AutoencoderKLCogVideoX(
        in_channels=3,
        out_channels=3,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )
    schedulers = diffusers.CogVideoXDPMScheduler if newer else diffusers.CogVideoXDDIMScheduler
    scheduler = schedulers(prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True)
    return _quiet(kind(ByT5Tokenizer(), _t5(), vae.eval(), transformer.eval(), scheduler))


def hunyuan(kind: Any = diffusers.HunyuanVideo15Pipeline, *, mean_flow: bool = False) -> Any:
    """A HunyuanVideo 1.5 pipeline: 4 frames a latent frame, 4 pixels a latent's side, short prompts."""
    torch.manual_seed(0)
    from_image = kind is diffusers.HunyuanVideo15ImageToVideoPipeline
    transformer = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=3,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=16,
        text_embed_2_dim=32,
        image_embed_dim=12,
        rope_axes_dim=(4, 6, 6),
        target_size=32,
        task_type="i2v" if from_image else "t2v",
        use_meanflow=mean_flow,
    )
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(16, 16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )
    encoder = Qwen2_5_VLTextModel(
        Qwen2_5_VLTextConfig(
            vocab_size=300,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]},
        )
    )
    letters = sorted(ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer({letter: index for index, letter in enumerate(letters)}, [])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=6.0)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0)
    parts = [encoder.eval(), tokenizer, transformer.eval(), vae.eval(), scheduler, _t5(), ByT5Tokenizer(), guider]
    if from_image:
        vision = SiglipVisionConfig(
            hidden_size=12,
            intermediate_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
        )
        parts += [SiglipVisionModel(vision).eval(), SiglipImageProcessorPil(size={"height": 32, "width": 32})]
    pipe = _quiet(kind(*parts))
    pipe.system_message, pipe.prompt_template_encode_start_idx = "You see", 8
    pipe.tokenizer_max_length, pipe.tokenizer_2_max_length, pipe.vision_num_semantic_tokens = 24, 16, 5
    return pipe


def mochi() -> Any:
    """A pipeline of a family that the engine does not step itself."""
    torch.manual_seed(0)
    transformer = diffusers.MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        pooled_projection_dim=16,
        in_channels=12,
        text_embed_dim=32,
        time_embed_dim=4,
        max_sequence_length=256,
    )
    vae = diffusers.AutoencoderKLMochi(
        latent_channels=12,
        out_channels=3,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.MochiPipeline(scheduler, vae.eval(), _t5(), ByT5Tokenizer(), transformer.eval())


def _quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


FAMILY_KINDS: dict[str, Callable[[], Any]] = {
    "LTX": ltx,
    "LTX, decoder with a timestep": lambda: ltx(decodes_at_a_timestep=True),
    "LTX from an image": lambda: ltx(diffusers.LTXImageToVideoPipeline),
    "CogVideoX 1.0": cogvideox,
    "CogVideoX 1.5": lambda: cogvideox(newer=True),
    "CogVideoX 1.0 from an image": lambda: cogvideox(diffusers.CogVideoXImageToVideoPipeline),
    "CogVideoX 1.5 from an image": lambda: cogvideox(diffusers.CogVideoXImageToVideoPipeline, newer=True),
    "HunyuanVideo 1.5": hunyuan,
    "HunyuanVideo 1.5 from an image": lambda: hunyuan(diffusers.HunyuanVideo15ImageToVideoPipeline),
}


def wan(**values: Any) -> Any:
    """A Wan pipeline; with `transformer_2=True` and a boundary, one of two experts."""
    torch.manual_seed(3)
    two = values.pop("transformer_2", False)
    vae = diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    text_encoder = UMT5EncoderModel(
        UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    ).eval()
    experts = [
        diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=3,
            rope_max_seq_len=32,
        ).eval()
        for _ in range(1 + two)
    ]
    parts = (ByT5Tokenizer(), text_encoder, vae.eval(), scheduler, experts[0])
    return _quiet(diffusers.WanPipeline(*parts, transformer_2=experts[1] if two else None, **values))
