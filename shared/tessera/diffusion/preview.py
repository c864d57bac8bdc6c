"""Previews of latents without the VAE's decoder: a linear map from a latent's channels to a colour.

The map is fitted by least squares on coloured patches that the VAE has encoded and decoded; or on random latents, where
encoder and decoder do not belong together (random weights). A preview is rough and takes a thousandth of the work of
decoding. Knows no family of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

SIDE = 8
"""Latents per side of a clip that the map is fitted on."""
FRAMES = 3
"""Latent frames of a clip that the map is fitted on."""
PATCHES = (1, 1, 2, 4)
"""Coloured patches per side of each clip, in turn. Most are coarse, as most areas of real frames are plain."""
PURE_SHARE = 0.5
"""Share (0 to 1) of clips in pure colours (black, white and the six between), which every encoder was trained on."""
SAMPLES_PER_CHANNEL = 40
"""Latents to fit on for each latent channel."""
MIN_CORRELATION = 0.5
"""Correlation (-1 to 1) of decoded with encoded pixels above which encoder and decoder belong together."""
MAX_CLIPS = 24
"""Most clips that the map is fitted on, whatever the number of channels."""
RIDGE = 1e-4
"""Ridge penalty per sample, so that channels without information get no weight."""
SEED = 1
"""Seed of the patches, so that a model has the same colours in each process."""


@dataclass(frozen=True)
class LatentColours:
    """A linear map from latent channels to RGB in -1..1."""

    weights_C3: torch.Tensor
    offset_3: torch.Tensor

    @classmethod
    def fit(
        cls,
        decode: Callable[[torch.Tensor], torch.Tensor],
        encode: Callable[[torch.Tensor], torch.Tensor],
        channels: int,
        device: torch.device,
    ) -> LatentColours:
        """Fit the map to a VAE.

        Args:
            decode: from normalized latents [1, C, T, H, W] to pixels [1, 3, frames, height, width] in -1..1.
            encode: from pixels to normalized latents.
            channels: number of latent channels.
            device: the VAE's device.
        """
        generator = torch.Generator("cpu").manual_seed(SEED)
        clips = math.ceil(SAMPLES_PER_CHANNEL * channels / (SIDE**2 * (FRAMES - 1)))
        clips = min(max(len(PATCHES), clips), MAX_CLIPS)
        noises = [torch.randn(1, channels, FRAMES, SIDE, SIDE, generator=generator).to(device) for _ in range(clips)]
        decoded_noise = decode(noises[0])
        pictures = [_patches(number, decoded_noise.shape, generator).to(device) for number in range(clips)]
        latents = [encode(picture) for picture in pictures]
        decoded = [decode(one) for one in latents]
        pixels = torch.stack([torch.stack(pictures).flatten(), torch.stack(decoded).float().flatten()])
        if not float(torch.corrcoef(pixels)[0, 1]) > MIN_CORRELATION:
            latents, decoded = noises, [decoded_noise, *(decode(noise) for noise in noises[1:])]
        given_NC = torch.cat([one[0, :, 1:].float().permute(1, 2, 3, 0).reshape(-1, channels) for one in latents])
        wanted_N3 = torch.cat([_pooled(clip) for clip in decoded])
        ones_NC = torch.cat([given_NC, torch.ones(len(given_NC), 1, device=device)], dim=1).cpu().double()
        ridge = RIDGE * len(ones_NC) * torch.eye(channels + 1, dtype=torch.float64)
        solved = torch.linalg.solve(ones_NC.T @ ones_NC + ridge, ones_NC.T @ wanted_N3.cpu().double())
        return cls(solved[:-1].float().to(device), solved[-1].float().to(device))

    def to_rgb(self, latents_CHW: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Return one latent frame as RGB: uint8 [height, width, 3], one pixel per latent."""
        colours_HW3 = latents_CHW.float().permute(1, 2, 0) @ self.weights_C3 + self.offset_3
        bytes_HW3 = ((colours_HW3.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        picture: npt.NDArray[np.uint8] = bytes_HW3.cpu().numpy()
        return picture


def _patches(number: int, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return a still clip of coloured patches in -1..1, of the given shape [1, 3, frames, height, width]."""
    side = PATCHES[number % len(PATCHES)]
    colours = torch.rand(1, 3, side, side, generator=generator) * 2 - 1
    if torch.rand(1, generator=generator).item() < PURE_SHARE:
        colours = colours.sign()
    elif number % 2:
        colours = colours[:, :1].expand(-1, 3, -1, -1)  # grey
    picture = functional.interpolate(colours, size=shape[-2:], mode="nearest")
    return picture.unsqueeze(2).expand(-1, -1, shape[2], -1, -1).contiguous()


def _pooled(clip: torch.Tensor) -> torch.Tensor:
    """Return the mean colour behind each latent, [N, 3], without the first latent frame, which is a single frame."""
    behind = clip[0, :, 1:].float().reshape(3, FRAMES - 1, -1, *clip.shape[-2:]).mean(2)
    return functional.adaptive_avg_pool2d(behind.transpose(0, 1), SIDE).permute(0, 2, 3, 1).reshape(-1, 3)
