"""A medium-sized Wan 2.1 pipeline with seeded random weights, in memory, to measure speed without a large model.

Its clips are noise, so it says nothing about quality. Does not know what is measured.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

SEED = 20_260_102
"""Seed of the weights."""


def build() -> WanPipeline:
    """Build a pipeline with 16 layers of width 256, a fiftieth of Wan 2.1's small model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        vae = AutoencoderKLWan(
            base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        )
        transformer = WanTransformer3DModel(
            num_attention_heads=4,
            attention_head_dim=64,
            text_dim=32,
            freq_dim=256,
            ffn_dim=1024,
            num_layers=16,
        )
        text_encoder = UMT5EncoderModel(
            UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        )
    for part in (vae, transformer, text_encoder):
        part.eval().requires_grad_(requires_grad=False)
    pipe = WanPipeline(ByT5Tokenizer(), text_encoder, vae, FlowMatchEulerDiscreteScheduler(shift=3.0), transformer)
    pipe.set_progress_bar_config(disable=True)
    return pipe
