"""Trains the video starter: the VAE, the text encoder, transformer and text encoder on latents, then the decoder.

Does not know how the model is evaluated.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from tessera.starters.run import Run
from tessera.wire.models import Card
from tessera_video.starter import data
from tessera_video.starter.codec import PLANS, CodecStage
from tessera_video.starter.denoiser import DenoiserStage
from tessera_video.starter.finishing import FinishingStage
from tessera_video.starter.latents import LatentPool, make_pool
from tessera_video.starter.model import GUIDANCE_SCALE, STEPS, make_codec, make_pipeline
from tessera_video.starter.reading import ReadingStage

NAME = "shapes-video"
NOTICE = (
    "made for one or two coloured shapes that move on a plain background, in clips of 17 frames of 64x64; "
    "the thing that is named first is further to the upper left"
)
EXAMPLE = "a red circle moves right and a blue star spins on a white background"
DATA = (
    "Clips rendered by tessera_video.starter.data and sentences that describe them: 6 colours, 4 shapes, 9 motions, "
    "3 backgrounds; 35 of the 210 triples of colour, shape and motion are held out. No other source."
)


def train(run: Run) -> Card:
    """Implement `Recipe.train`."""
    codec = None
    for plan in PLANS:
        codec_stage = CodecStage(run, plan, codec)
        run.fit(codec_stage)
        codec = codec_stage.codec
    assert codec is not None
    pool = make_pool(run, codec)
    reading = ReadingStage(run)
    run.fit(reading)
    stage = DenoiserStage(run, pool, reading.text_encoder)
    run.fit(stage)
    run.fit(FinishingStage(run, codec, pool, stage))
    return save(run, codec, pool, stage)


def save(run: Run, codec: AutoencoderKLWan, pool: LatentPool, stage: DenoiserStage) -> Card:
    """Write the pipeline with its averaged weights in float16 to `run.output`. Returns its card."""
    stage.average.copy_to(stage.trained)
    shipped = make_codec(pool.mean, pool.deviation)
    shipped.load_state_dict(codec.state_dict())
    parts: tuple[Any, ...] = (stage.text_encoder, shipped, stage.transformer)
    text_encoder, shipped, transformer = (part.to("cpu", torch.float16).eval() for part in parts)
    make_pipeline(stage.tokenizer, text_encoder, shipped, transformer).save_pretrained(str(run.output))
    return Card(
        id=NAME,
        family="WanPipeline",
        tasks=["video"],
        source=f"recipe:tessera starters train {NAME}",
        parameters=sum(parameter.numel() for part in parts for parameter in part.parameters()),
        licence="apache-2.0",
        notice=NOTICE,
        example=EXAMPLE,
        scheme="float16",
        sizes=[f"{data.SIDE}x{data.SIDE}"],
        fps=data.FRAMES_PER_SECOND,
        frames_multiple=4,
        size_multiple=16,
        image_input="optional",
        steps=STEPS,
        guidance_scale=GUIDANCE_SCALE,
        created=int(time.time()),
        data=DATA,
    )
