"""The second training stage of the video starter: encodes clips to latents once, to be used in many steps.

Writes files with a fixed number of clips one after the other, so that an interrupted run resumes. Does not know what
is trained on them.

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

SHARDS, CLIPS_PER_SHARD = 36, 500
"""Number of files, and clips in each."""
BATCH = 20
"""Clips that are encoded together."""
KEY = "latents"
"""Name of the tensor in each file."""


@dataclass(frozen=True)
class LatentPool:
    """The latents of all clips, normalized: each channel has mean 0 and standard deviation 1 over the pool."""

    latents_NCTHW: torch.Tensor
    """Normalized latents, float16."""
    mean: list[float]
    """Mean of each channel before normalization."""
    deviation: list[float]
    """Standard deviation of each channel before normalization."""


def scene_of(run: Run, clip: int) -> tuple[data.ClipScene, np.random.Generator]:
    """Return the scene of one of the pool's clips, and the random generator that its rendering continues with.

    Two of three clips have two things, because which thing does what is learned last.
    """
    random = generator(run.seed_of("clip", clip))
    return data.draw_scene(random, things=2 if clip % 3 else 1), random


def make_pool(run: Run, codec: AutoencoderKLWan) -> LatentPool:
    """Render and encode the clips that are missing, and read all latents.

    Raises:
        TrainingPaused: the time is over; finished files stay.
    """
    codec.eval()
    paths = [run.work / f"latents-{shard:03d}.safetensors" for shard in range(SHARDS)]
    for shard in range(run.group.rank, SHARDS, run.group.count):
        if not paths[shard].is_file():
            run.check_time()
            new = paths[shard].with_suffix(".new")
            save_file({KEY: _encode(run, codec, shard)}, new)
            new.replace(paths[shard])
            run.report(f"latents: {(shard + 1) * CLIPS_PER_SHARD} of {SHARDS * CLIPS_PER_SHARD} clips are coded")
    run.group.wait()
    latents_NCTHW = torch.cat([load_file(path)[KEY] for path in paths])
    # Over the first shards, in float64, so that the sums do not depend on how much memory there is.
    sample_NCTHW = latents_NCTHW[: 4 * CLIPS_PER_SHARD].double()
    mean, deviation = sample_NCTHW.mean((0, 2, 3, 4)), sample_NCTHW.std((0, 2, 3, 4))
    shape = (1, -1, 1, 1, 1)
    for shard in range(0, len(latents_NCTHW), CLIPS_PER_SHARD):
        part = latents_NCTHW[shard : shard + CLIPS_PER_SHARD]
        part.copy_((part.float() - mean.view(shape).float()) / deviation.view(shape).float())
    return LatentPool(latents_NCTHW, mean.tolist(), deviation.tolist())


@torch.inference_mode()
def _encode(run: Run, codec: AutoencoderKLWan, shard: int) -> torch.Tensor:
    coded = []
    for first in range(0, CLIPS_PER_SHARD, BATCH):
        clips = []
        for clip in range(first, first + BATCH):
            scene, random = scene_of(run, shard * CLIPS_PER_SHARD + clip)
            clips.append(data.render(scene, random))
        with autocast(run.device):
            latents_NCTHW = whole_clip_vae.encode(codec, to_pixels(np.stack(clips)).to(run.device))
        coded.append(latents_NCTHW.to("cpu", torch.float16).contiguous())
    return torch.cat(coded)
