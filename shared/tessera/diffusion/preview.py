"""What latents look like, without their decoder: a linear map from a latent's channels to a colour.

Fitted by least squares on what the VAE's decoder makes of coloured patches that its encoder has read; or of random
latents, where the two do not belong together (random weights). Rough, and a thousandth of the work. Does not know a
family of models.
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
"""Latents of a side of a fitted clip."""
FRAMES = 3
"""Latent frames of one."""
PATCHES = (1, 1, 2, 4)
"""Of a side, from clip to clip: most pictures are plain in most places."""
PURE_SHARE = 0.5
"""Of the clips: black, white and the six colours between them, which an encoder has seen if any."""
SAMPLES_FOR_A_CHANNEL = 40
BELONG = 0.5
"""Correlation of what is decoded with what was encoded from which on the two belong together."""
MOST_CLIPS = 24
SHRINKAGE = 1e-4
"""Of the least squares (ridge), so that channels that say nothing get no weight."""
SEED = 1


@dataclass(frozen=True)
class LatentColours:
    """The map."""

    weights_C3: torch.Tensor
    offset_3: torch.Tensor

    @classmethod
    def fit(
        cls,
        paint: Callable[[torch.Tensor], torch.Tensor],
        read: Callable[[torch.Tensor], torch.Tensor],
        channels: int,
        device: torch.device,
    ) -> LatentColours:
        """Fit it.

        Args:
            paint: the decoder: normalized latents [1, C, T, H, W] to [1, 3, frames, h, w] in -1..1.
            read: the encoder, the other way round.
            channels: of the latents.
            device: of both.
        """
        generator = torch.Generator("cpu").manual_seed(SEED)
        clips = math.ceil(SAMPLES_FOR_A_CHANNEL * channels / (SIDE**2 * (FRAMES - 1)))
        clips = min(max(len(PATCHES), clips), MOST_CLIPS)
        noises = [torch.randn(1, channels, FRAMES, SIDE, SIDE, generator=generator).to(device) for _ in range(clips)]
        plain = paint(noises[0])
        pictures = [_patches(number, plain.shape, generator).to(device) for number in range(clips)]
        latents = [read(picture) for picture in pictures]
        painted = [paint(one) for one in latents]
        told = torch.stack([torch.stack(pictures).flatten(), torch.stack(painted).float().flatten()])
        if not float(torch.corrcoef(told)[0, 1]) > BELONG:
            latents, painted = noises, [plain, *(paint(noise) for noise in noises[1:])]
        given_NC = torch.cat([one[0, :, 1:].float().permute(1, 2, 3, 0).reshape(-1, channels) for one in latents])
        wanted_N3 = torch.cat([_pooled(clip) for clip in painted])
        ones_NC = torch.cat([given_NC, torch.ones(len(given_NC), 1, device=device)], dim=1).cpu().double()
        ridge = SHRINKAGE * len(ones_NC) * torch.eye(channels + 1, dtype=torch.float64)
        solved = torch.linalg.solve(ones_NC.T @ ones_NC + ridge, ones_NC.T @ wanted_N3.cpu().double())
        return cls(solved[:-1].float().to(device), solved[-1].float().to(device))

    def paint(self, latents_CHW: torch.Tensor) -> npt.NDArray[np.uint8]:
        """RGB of one latent frame: [height, width, 3], a pixel for each latent."""
        colours_HW3 = latents_CHW.float().permute(1, 2, 0) @ self.weights_C3 + self.offset_3
        bytes_HW3 = ((colours_HW3.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        painted: npt.NDArray[np.uint8] = bytes_HW3.cpu().numpy()
        return painted


def _patches(number: int, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """A still clip of coloured patches in -1..1, of the shape of a decoded one."""
    side = PATCHES[number % len(PATCHES)]
    colours = torch.rand(1, 3, side, side, generator=generator) * 2 - 1
    if torch.rand(1, generator=generator).item() < PURE_SHARE:
        colours = colours.sign()
    elif number % 2:
        colours = colours[:, :1].expand(-1, 3, -1, -1)  # grey
    picture = functional.interpolate(colours, size=shape[-2:], mode="nearest")
    return picture.unsqueeze(2).expand(-1, -1, shape[2], -1, -1).contiguous()


def _pooled(clip: torch.Tensor) -> torch.Tensor:
    """[N, 3]: the mean colour behind each latent, without the first latent frame, which is a single frame."""
    behind = clip[0, :, 1:].float().reshape(3, FRAMES - 1, -1, *clip.shape[-2:]).mean(2)
    return functional.adaptive_avg_pool2d(behind.transpose(0, 1), SIDE).permute(0, 2, 3, 1).reshape(-1, 3)
