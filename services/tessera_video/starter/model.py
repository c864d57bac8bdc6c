"""The video starter's architecture: a Wan 2.2 text-and-image-to-video pipeline, made small, with untrained weights.

The same classes as a 5B checkpoint: UMT5 encoder, `WanTransformer3DModel`, `AutoencoderKLWan`, a flow-matching
scheduler. Clips are 17x64x64 pixels, their latents 5x8x8, a token of the transformer covers 16x16 pixels and up to four
frames. Does not know how it is trained.
"""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from tessera_video.starter import data

LATENT_CHANNELS = 8
"""Channels of the VAE's latents."""
TEXT_WIDTH = 96
"""Channels of the text encoder's hidden states."""
FLOW_SHIFT = 3.0
"""Shift of the flow scheduler's timesteps towards noise."""
STEPS, GUIDANCE_SCALE = 24, 2.5
"""Denoising steps and guidance scale that the card recommends and the evaluation uses."""
PADDING, UNKNOWN = "<pad>", "<unk>"
"""Tokens for padding and for words outside the vocabulary."""


def make_codec(latents_mean: list[float] | None = None, latents_std: list[float] | None = None) -> AutoencoderKLWan:
    """Build the VAE: 8x8 pixels and 4 frames become one latent of `LATENT_CHANNELS` elements."""
    return AutoencoderKLWan(
        base_dim=16,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        in_channels=12,
        out_channels=12,
        patch_size=2,
        is_residual=True,
        scale_factor_spatial=8,
        latents_mean=latents_mean or [0.0] * LATENT_CHANNELS,
        latents_std=latents_std or [1.0] * LATENT_CHANNELS,
    )


def make_transformer() -> WanTransformer3DModel:
    """Build the transformer that denoises latents."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=128,
        ffn_dim=512,
        num_layers=6,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=1024,
    )


def make_text_encoder(tokenizer: PreTrainedTokenizerFast) -> UMT5EncoderModel:
    """Build the text encoder."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_WIDTH,
            d_kv=24,
            d_ff=192,
            num_layers=2,
            num_heads=4,
            relative_attention_num_buckets=32,
            relative_attention_max_distance=32,
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of the words and punctuation of the prompts, in lower case; other words are unknown."""
    phrases = [phrase for table in (data.PARTICIPLES, data.VERBS) for options in table.values() for phrase in options]
    words = {word for phrase in phrases for word in phrase.split()}
    words |= {*data.COLOURS, *data.SHAPES, *data.BACKGROUNDS, "a", "an", "and", "while", "on", "in", "front", "of"}
    words |= {"background", "the", "it", "is", ",", "."}
    vocabulary = {word: index for index, word in enumerate((PADDING, UNKNOWN, *sorted(words)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PADDING, unk_token=UNKNOWN)


def make_scheduler() -> UniPCMultistepScheduler:
    """Build the scheduler, of Wan's class."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=FLOW_SHIFT
    )


def make_pipeline(
    tokenizer: PreTrainedTokenizerFast,
    text_encoder: UMT5EncoderModel,
    codec: AutoencoderKLWan,
    transformer: WanTransformer3DModel,
) -> Any:
    """Build the pipeline to be saved. A first frame is optional: timesteps are per token, as in Wan 2.2's 5B model."""
    return WanPipeline(tokenizer, text_encoder, codec, make_scheduler(), transformer, expand_timesteps=True)
