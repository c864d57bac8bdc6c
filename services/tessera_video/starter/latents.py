"""Second part of the video starter's training: clips coded once, to be used many times.

Files of a fixed number of clips, written one after the other, so that an interrupted run goes on. Does not know what
learns from them.

Shapes: N clips, C latent channels, T latent frames, H and W latent sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file

from tessera.starters.optimize import autocast, generator
from tessera.starters.run import Run
from tessera_video.starter import data, whole_clip_vae
from tessera_video.starter.codec import to_pixels

SHARDS, CLIPS_OF_A_SHARD = 36, 500
AT_ONCE = 20
KEY = "latents"


@dataclass(frozen=True)
class LatentPool:
    """All clips. The latents are normalized: each channel has mean 0 and deviation 1 over the pool."""

    latents_NCTHW: torch.Tensor
    """float16."""
    mean: list[float]
    deviation: list[float]


def scene_of(run: Run, clip: int) -> tuple[data.ClipScene, np.random.Generator]:
    """The scene of a clip of the pool, and the random generator that its rendering goes on with.

    Two of three clips have two things: who does what is learned last.
    """
    random = generator(run.seed_of("clip", clip))
    return data.draw_scene(random, things=2 if clip % 3 else 1), random


def make_pool(run: Run, codec: AutoencoderKLWan) -> LatentPool:
    """Render and code what is not yet there, and read it all.

    Raises:
        TrainingPaused: the time is over; what is made stays.
    """
    codec.eval()
    paths = [run.work / f"latents-{shard:03d}.safetensors" for shard in range(SHARDS)]
    for shard in range(run.group.rank, SHARDS, run.group.count):
        if not paths[shard].is_file():
            run.check_time()
            new = paths[shard].with_suffix(".new")
            save_file({KEY: _code(run, codec, shard)}, new)
            new.replace(paths[shard])
            run.report(f"latents: {(shard + 1) * CLIPS_OF_A_SHARD} of {SHARDS * CLIPS_OF_A_SHARD} clips are coded")
    run.group.wait()
    latents_NCTHW = torch.cat([load_file(path)[KEY] for path in paths])
    # Over the first shards, in float64, so that the sums do not depend on how much memory there is.
    sample_NCTHW = latents_NCTHW[: 4 * CLIPS_OF_A_SHARD].double()
    mean, deviation = sample_NCTHW.mean((0, 2, 3, 4)), sample_NCTHW.std((0, 2, 3, 4))
    shape = (1, -1, 1, 1, 1)
    for shard in range(0, len(latents_NCTHW), CLIPS_OF_A_SHARD):
        part = latents_NCTHW[shard : shard + CLIPS_OF_A_SHARD]
        part.copy_((part.float() - mean.view(shape).float()) / deviation.view(shape).float())
    return LatentPool(latents_NCTHW, mean.tolist(), deviation.tolist())


@torch.inference_mode()
def _code(run: Run, codec: AutoencoderKLWan, shard: int) -> torch.Tensor:
    coded = []
    for first in range(0, CLIPS_OF_A_SHARD, AT_ONCE):
        clips = []
        for clip in range(first, first + AT_ONCE):
            scene, random = scene_of(run, shard * CLIPS_OF_A_SHARD + clip)
            clips.append(data.render(scene, random))
        with autocast(run.device):
            latents_NCTHW = whole_clip_vae.encode(codec, to_pixels(np.stack(clips)).to(run.device))
        coded.append(latents_NCTHW.to("cpu", torch.float16).contiguous())
    return torch.cat(coded)
