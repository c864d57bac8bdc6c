"""An auxiliary training target of the transformer: which tokens show a thing, and that thing's attributes.

A denoiser learns slowly to represent what is where (Yu et al. 2024, "Representation Alignment for Generation"); here it
is known exactly. The head exists only during training. Knows no prompts.

Shapes: B clips, T latent frames, N tokens of a clip in the transformer's order (frames, rows, columns).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from tessera_video.starter import data

LATENT_FRAMES, ROWS = 5, 4
"""Latent frames of a clip, and tokens per side of a latent frame."""
TOKENS = LATENT_FRAMES * ROWS * ROWS
"""Tokens of a clip."""
CELL = data.SIDE // ROWS
"""Pixels per side of a token."""
SEEN_IN = (0, 2, 6, 10, 14)
"""Index of the frame that stands for each latent frame: the first covers one frame, the others four."""
REACHED = 0.9
"""Radii: a token shows a thing whose centre is nearer to the token's cell than this."""
EMPTY = 0.2
"""Weight (0 to 1) of tokens that show nothing, in the loss of attributes."""
NAMES: dict[str, tuple[str, ...]] = {
    "colour": tuple(data.COLOURS),
    "shape": data.SHAPES,
    "motion": data.MOTIONS,
    "background": tuple(data.BACKGROUNDS),
}
"""Values of each attribute; class k + 1 stands for the value at index k."""
PLACES = 3
"""Values per token: horizontal and vertical offset of the thing from the token's centre, and its radius."""


@dataclass(frozen=True)
class LayoutTargets:
    """Targets of a batch: int64 classes [B, N] for each attribute (0 is nothing), float32 places [B, N, `PLACES`]."""

    classes: dict[str, torch.Tensor]
    places_BNP: torch.Tensor


def layout_of(
    scene: data.ClipScene, tracks: tuple[data.Track, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the targets of one clip: classes [attributes, N] in the order of `NAMES`, and places [N, `PLACES`]."""
    classes = np.zeros((len(NAMES), TOKENS), np.int64)
    classes[-1] = 1 + NAMES["background"].index(scene.background)
    places = np.zeros((TOKENS, PLACES), np.float32)
    nearest = np.full(TOKENS, np.inf)
    middle = (np.arange(ROWS) + 0.5) * CELL
    for thing, track in zip(scene.things, tracks, strict=True):
        at = list(SEEN_IN)
        shape = (LATENT_FRAMES, ROWS, ROWS)
        off_x = np.broadcast_to(track.x[at][:, None, None] - middle[None, None, :], shape).ravel()
        off_y = np.broadcast_to(track.y[at][:, None, None] - middle[None, :, None], shape).ravel()
        radius = np.broadcast_to(track.radius[at][:, None, None], shape).ravel()
        outside = np.hypot(*(np.maximum(np.abs(off) - CELL / 2, 0.0) for off in (off_x, off_y)))
        shows = (outside < REACHED * radius) & (np.hypot(off_x, off_y) < nearest)
        nearest[shows] = np.hypot(off_x, off_y)[shows]
        for row, name in enumerate(("colour", "shape", "motion")):
            classes[row, shows] = 1 + NAMES[name].index(getattr(thing, name))
        places[shows] = (np.stack([off_x, off_y, radius - 9.0], axis=1) / (CELL, CELL, 3.0))[shows]
    return classes, places


class LayoutHead(nn.Module):
    """Linear heads that predict the layout from a layer's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.classes = nn.ModuleDict({name: nn.Linear(width, len(values) + 1) for name, values in NAMES.items()})
        self.places = nn.Linear(width, PLACES)

    def forward(self, features_BND: torch.Tensor, layout: LayoutTargets) -> torch.Tensor:
        """Return the loss: cross entropies of all attributes, plus the distance of the places."""
        features_BND = self.norm(features_BND.float())
        shown_BN = layout.classes["colour"] > 0
        weight_BN = torch.where(shown_BN, 1.0, EMPTY)
        total = torch.zeros((), device=features_BND.device)
        for name, head in self.classes.items():
            wrong_BN = functional.cross_entropy(
                head(features_BND).float().transpose(1, 2), layout.classes[name], reduction="none"
            )
            total = total + (wrong_BN * weight_BN).sum() / weight_BN.sum()
        far_BN = functional.smooth_l1_loss(self.places(features_BND).float(), layout.places_BNP, reduction="none").sum(
            -1
        )
        return total + (far_BN * shown_BN).sum() / shown_BN.sum().clamp_min(1)
