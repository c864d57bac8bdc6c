"""The first training stages of the video starter: the VAE learns to encode clips and to decode them.

Trains on windows around the things of generated clips, and on some whole clips. Knows no prompts.

Shapes: B clips, C = 3 colours or latent channels, T frames, H and W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import nn

from tessera.starters.optimize import adamw, autocast, cosine, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_video.starter import data, whole_clip_vae
from tessera_video.starter.model import make_codec

WINDOW_SIDE, WINDOW_FRAMES = 32, 9
"""Pixels per side, and frames, of a training window."""
SQUARE_WEIGHT, EDGE_WEIGHT, SIZE_WEIGHT = 4.0, 0.3, 1e-4
"""Weights of the loss: squared error, error of differences between neighbours, and mean square of the latents."""


@dataclass(frozen=True)
class CodecPlan:
    """One optimisation of the VAE: its length, batch sizes and learning rate.

    The last part of the steps trains on fewer windows with all frames, or on one whole clip: a VAE that is trained only
    on short windows fails on frames beyond their length.
    """

    name: str
    """Name of the stage, which its training checkpoint bears."""
    steps: int
    """Optimizer steps."""
    windows: int
    """Windows of `WINDOW_FRAMES` frames per step."""
    last_from: int
    """Step from which the last part begins."""
    last_windows: int
    """Windows of all frames per step in the last part; 0 trains on one whole clip per step."""
    peak: float
    """Peak learning rate."""
    stars: float = 0.0
    """Least share (0 to 1) of windows around a star, whose tips are the finest detail."""
    grid: int = 1
    """Pixels between two possible places of a window; a latent's side at the end, because clips are encoded whole."""
    noise: float = 0.1
    """Standard deviation of the noise added to latents, so that latents nearby decode to similar pixels."""


ROUGH = CodecPlan("codec", steps=3000, windows=4, last_from=2500, last_windows=0, peak=1.5e-3)
SHARP = CodecPlan("codec-sharp", steps=4000, windows=6, last_from=2400, last_windows=3, peak=1e-3)
FINE = CodecPlan("codec-fine", steps=5000, windows=0, last_from=0, last_windows=4, peak=8e-4, grid=8)
TIPS = CodecPlan("codec-tips", steps=5000, windows=0, last_from=0, last_windows=4, peak=8e-4, stars=0.5, grid=8)
PLANS = (ROUGH, SHARP, FINE, TIPS)
"""The optimisations in their order: short windows, all frames, latents on the grid, tips of stars."""


class CodecStage:
    """A `Stage` that trains the VAE.

    Args:
        run: the training run.
        plan: the optimisation.
        codec: VAE to continue training; None starts with an untrained one.
    """

    def __init__(self, run: Run, plan: CodecPlan, codec: AutoencoderKLWan | None = None) -> None:
        self.name, self.steps = plan.name, plan.steps
        run.reseed(self.name)
        self.run = run
        self.plan = plan
        self.codec = (codec or make_codec()).to(run.device).train()
        for layer in self.codec.modules():  # the memory layout in which bfloat16 convolutions are fastest
            if isinstance(layer, nn.Conv3d):
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last_3d)
        self.optimizer = adamw([self.codec], plan.peak)

    def modules(self) -> dict[str, nn.Module]:
        """Implement this part of `Stage`."""
        return {"codec": self.codec}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Implement this part of `Stage`."""
        return {"codec": self.optimizer}

    def step(self, index: int) -> dict[str, float]:
        """Implement this part of `Stage`."""
        random = generator(self.run.seed_of(self.name, index))
        clips = self._clips(index, random)
        own = self.run.group.own_items(len(clips))
        set_learning_rate(self.optimizer, cosine(index, self.steps, self.plan.peak))
        self.optimizer.zero_grad(set_to_none=True)
        values = self._learn(clips, own) if own.start < own.stop else {}
        self.run.group.sum_gradients(self.codec.parameters(), self.run.group.own_share(len(clips)))
        nn.utils.clip_grad_norm_(self.codec.parameters(), 1.0)
        self.optimizer.step()
        return values

    def _learn(self, clips: list[data.RenderedClip], own: slice) -> dict[str, float]:
        """Compute the gradients of this process' part of a batch. Returns the values to report."""
        pixels_BCTHW = to_pixels(np.stack(clips[own])).to(self.run.device, memory_format=torch.channels_last_3d)
        with autocast(self.run.device):
            latents_BCTHW = whole_clip_vae.encode(self.codec, pixels_BCTHW)
            noise_BCTHW = self._noise(latents_BCTHW, len(clips))[own]
            decoded_BCTHW = whole_clip_vae.decode(self.codec, latents_BCTHW + noise_BCTHW).float()
        error_BCTHW = decoded_BCTHW - pixels_BCTHW
        absolute, square = error_BCTHW.abs().mean(), error_BCTHW.square().mean()
        edges = torch.stack([error_BCTHW.diff(dim=axis).abs().mean() for axis in (2, 3, 4)]).sum()
        size = latents_BCTHW.float().square().mean()
        loss = SQUARE_WEIGHT * square + absolute + EDGE_WEIGHT * edges + SIZE_WEIGHT * size
        loss.backward()  # type: ignore[no-untyped-call]
        decibels = 10.0 * (4.0 / square.detach().clamp_min(1e-9)).log10()
        return {"absolute": absolute.item(), "size": size.item(), "psnr": decibels.item()}

    def _noise(self, latents_BCTHW: torch.Tensor, clips: int) -> torch.Tensor:
        """Draw noise for a whole batch, of which these latents are a part, independent of the number of processes."""
        return self.plan.noise * torch.randn(clips, *latents_BCTHW.shape[1:]).to(latents_BCTHW)

    def _clips(self, index: int, random: np.random.Generator) -> list[data.RenderedClip]:
        if index < self.plan.last_from:
            return [_window(random, self.plan, WINDOW_FRAMES) for _ in range(self.plan.windows)]
        if self.plan.last_windows:
            return [_window(random, self.plan, data.FRAMES) for _ in range(self.plan.last_windows)]
        return [_whole(random)]


def to_pixels(clips: np.ndarray) -> torch.Tensor:
    """Convert clips from uint8 [B, T, H, W, 3] to float32 [B, 3, T, H, W] in -1..1."""
    return torch.from_numpy(clips).permute(0, 4, 1, 2, 3).to(torch.float32).div(127.5).sub(1.0)


def _whole(random: np.random.Generator) -> data.RenderedClip:
    return data.render(data.draw_scene(random, things=2), random)


def _window(random: np.random.Generator, plan: CodecPlan, frames: int) -> data.RenderedClip:
    """Draw some frames of a square around a thing, which is a star with a probability of at least `plan.stars`."""
    scene = data.draw_scene(random)
    starred = [index for index, thing in enumerate(scene.things) if thing.shape == "star"]
    if wanted := bool(plan.stars and random.random() < plan.stars):
        while not starred:
            scene = data.draw_scene(random)
            starred = [index for index, thing in enumerate(scene.things) if thing.shape == "star"]
    tracks = data.draw_tracks(scene, random)
    start = int(random.integers(0, data.FRAMES - frames + 1))
    track = tracks[starred[0] if wanted else int(random.integers(0, len(tracks)))]
    most = data.SIDE - WINDOW_SIDE
    middles = [place[start : start + frames].mean() + random.uniform(-14, 14) for place in (track.y, track.x)]
    corner = [plan.grid * int(np.clip(middle - WINDOW_SIDE / 2, 0, most) / plan.grid + 0.5) for middle in middles]
    clip = data.paint(scene, tracks)
    y, x = corner
    return clip[start : start + frames, y : y + WINDOW_SIDE, x : x + WINDOW_SIDE]
