"""The last training stage of the video starter: the decoder learns to decode clean shapes from denoised latents.

Denoised latents differ from encoded ones: a circle has a dent, an edge is wavy. So noise is added to latents, they are
denoised again in a few steps, and the decoder learns to decode the clip that they came from. The encoder is not
trained, so latents keep their meaning. Does not change the content of clips, which is decided before.

Shapes: B windows, C latent channels or colours, T frames, H and W latent sizes or pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import nn

from tessera.starters.optimize import adamw, autocast, cosine, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_video.starter import data, whole_clip_vae
from tessera_video.starter.codec import EDGE_WEIGHT, SQUARE_WEIGHT, WINDOW_SIDE, to_pixels
from tessera_video.starter.denoiser import DenoiserStage
from tessera_video.starter.latents import LatentPool, scene_of

STEPS, BATCH = 4000, 6
"""Optimizer steps, and windows per step."""
PEAK = 6e-4
"""Peak learning rate."""
CLEAN_SHARE = 0.2
"""Share (0 to 1) of windows with encoded latents that are not denoised, as a given first frame has them."""
MIN_NOISE, MAX_NOISE, DENOISING_STEPS = 0.15, 0.6, 3
"""Range of noise levels (0 to 1) that are added, and the steps in which they are removed."""
CELL = 8
"""Pixels per side of a latent."""


class FinishingStage:
    """A `Stage` that trains the VAE's decoder.

    Args:
        run: the training run.
        codec: the VAE whose decoder is trained.
        pool: latents that this VAE has encoded.
        denoiser: the trained denoiser; its averaged weights are used.
    """

    name = "codec-finish"
    steps = STEPS

    def __init__(self, run: Run, codec: AutoencoderKLWan, pool: LatentPool, denoiser: DenoiserStage) -> None:
        run.reseed(self.name)
        self.run, self.codec, self.pool, self.denoiser = run, codec, pool, denoiser
        denoiser.average.copy_to(denoiser.trained)
        denoiser.trained.eval()
        self.taught = nn.ModuleList([codec.post_quant_conv, codec.decoder]).train()
        self.optimizer = adamw([self.taught], PEAK)
        shape = (1, -1, 1, 1, 1)
        self._mean = torch.tensor(pool.mean, device=run.device).view(shape)
        self._deviation = torch.tensor(pool.deviation, device=run.device).view(shape)

    def modules(self) -> dict[str, nn.Module]:
        """Implement this part of `Stage`."""
        return {"taught": self.taught}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Implement this part of `Stage`."""
        return {"optimizer": self.optimizer}

    def step(self, index: int) -> dict[str, float]:
        """Implement this part of `Stage`."""
        random = generator(self.run.seed_of(self.name, index))
        clips = random.choice(len(self.pool.latents_NCTHW), BATCH, replace=False)
        levels_B = random.uniform(MIN_NOISE, MAX_NOISE, BATCH).astype(np.float32)
        levels_B[random.random(BATCH) < CLEAN_SHARE] = 0.0
        prompts = [data.describe(scene_of(self.run, int(clip))[0], random) for clip in clips]
        noises_BCTHW = torch.randn(BATCH, *self.pool.latents_NCTHW.shape[1:])
        windows = [self._window(int(clip), random) for clip in clips]
        own = self.run.group.own_items(BATCH)
        clips, prompts, windows = clips[own], prompts[own], windows[own]
        level_B, noise_BCTHW = (one[own].to(self.run.device) for one in (torch.from_numpy(levels_B), noises_BCTHW))
        latents_BCTHW = self._denoised(clips, level_B, noise_BCTHW, prompts) * self._deviation + self._mean
        pixels_BCTHW = to_pixels(np.stack([pixels for pixels, _ in windows])).to(self.run.device)
        side = WINDOW_SIDE // CELL
        cut_BCTHW = torch.stack(
            [
                latents[:, :, y : y + side, x : x + side]
                for latents, (_, (y, x)) in zip(latents_BCTHW, windows, strict=True)
            ]
        )
        set_learning_rate(self.optimizer, cosine(index, self.steps, PEAK, warmup=20))
        with autocast(self.run.device):
            decoded_BCTHW = whole_clip_vae.decode(self.codec, cut_BCTHW).float()
        error_BCTHW = decoded_BCTHW - pixels_BCTHW
        absolute, square = error_BCTHW.abs().mean(), error_BCTHW.square().mean()
        edges = torch.stack([error_BCTHW.diff(dim=axis).abs().mean() for axis in (2, 3, 4)]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        (SQUARE_WEIGHT * square + absolute + EDGE_WEIGHT * edges).backward()  # type: ignore[no-untyped-call]
        self.run.group.sum_gradients(self.taught.parameters(), self.run.group.own_share(BATCH))
        nn.utils.clip_grad_norm_(self.taught.parameters(), 1.0)
        self.optimizer.step()
        return {"absolute": absolute.item(), "edges": edges.item()}

    @torch.no_grad()
    def _denoised(
        self, clips: np.ndarray, level_B: torch.Tensor, noise_BCTHW: torch.Tensor, prompts: list[str]
    ) -> torch.Tensor:
        """Return normalized latents after noise was added and removed again by the denoiser with their prompts."""
        clean_BCTHW = self.pool.latents_NCTHW[torch.from_numpy(clips)].to(self.run.device, torch.float32)
        level_B1111 = level_B.view(-1, 1, 1, 1, 1)
        latents_BCTHW = (1.0 - level_B1111) * clean_BCTHW + level_B1111 * noise_BCTHW
        for step in range(DENOISING_STEPS):
            left_B = level_B * (1.0 - step / DENOISING_STEPS)
            with autocast(self.run.device):
                away_BCTHW = self.denoiser.predict(latents_BCTHW, 1000.0 * left_B, prompts).float()
            latents_BCTHW = latents_BCTHW - level_B1111 / DENOISING_STEPS * away_BCTHW
        return latents_BCTHW

    def _window(self, clip: int, random: np.random.Generator) -> tuple[data.RenderedClip, tuple[int, int]]:
        """Return all frames of a square around a thing of a clip, and the square's corner in latents."""
        scene, drawing = scene_of(self.run, clip)
        tracks = data.draw_tracks(scene, drawing)
        track = tracks[int(random.integers(len(tracks)))]
        most = (data.SIDE - WINDOW_SIDE) // CELL
        y, x = (
            int(np.clip(round((place.mean() + random.uniform(-10, 10) - WINDOW_SIDE / 2) / CELL), 0, most))
            for place in (track.y, track.x)
        )
        painted = data.paint(scene, tracks)
        return painted[:, CELL * y : CELL * y + WINDOW_SIDE, CELL * x : CELL * x + WINDOW_SIDE], (y, x)
