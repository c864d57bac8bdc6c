"""A Wan 2.1 text-to-video pipeline with seeded random weights, under a megabyte, for tests of the step loop.

It takes the same way as a 14B checkpoint (same classes, same loader), and its clips are noise.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel
from transformers.utils import logging as transformers_logging

from tessera.hub.store import Report
from tessera.wire.models import Card

NAME = "tiny-random-video"
NOTICE = "random weights: the output is noise, only the way there is real"
SEED = 20_260_101


def build(directory: Path, report: Report) -> Card:
    """Write the pipeline into the empty `directory`; the same weights on every machine."""
    transformers_logging.disable_progress_bar()
    report("making a tiny video pipeline with random weights")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        vae = AutoencoderKLWan(
            base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        )
        transformer = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=24,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=64,
            ffn_dim=96,
            num_layers=2,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=1024,
        )
        text_encoder = UMT5EncoderModel(
            UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        )
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )
    parts = (vae, transformer, text_encoder)
    for part in parts:
        part.eval()
    WanPipeline(ByT5Tokenizer(), text_encoder, vae, scheduler, transformer).save_pretrained(str(directory))
    return Card(
        id=NAME,
        family="WanPipeline",
        tasks=["video"],
        source="tests/shared/diffusion/random_pipeline.py",
        parameters=sum(parameter.numel() for part in parts for parameter in part.parameters()),
        licence="Apache-2.0",
        notice=NOTICE,
        sizes=["64x64", "96x64", "64x96"],
        fps=8,
        frames_multiple=4,
        steps=8,
        size_multiple=16,
        created=int(time.time()),
    )
