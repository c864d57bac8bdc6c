"""Dense targets of the vision encoder: the content of each patch, each cell and each row of a picture.

The heads that predict them exist only during training. Knows nothing about questions.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from tessera_vision.starter.data import COLORS, SHAPES, SIZES, WORDS, GridScene, PrintedWord, Shape
from tessera_vision.starter.drawing import Drawing

PATCHES = 9
CELLS = 9
BACKGROUND = 0.1
"""Weight of an empty patch in the loss: most patches are empty, and this is learned soon."""
_PARTS = {name: index + 1 for index, name in enumerate((*SHAPES, *"0123456789", *"abcdefghijklmnopqrstuvwxyz"))}
_INKS = {name: index + 1 for index, name in enumerate(COLORS)}
_WORD = len(SHAPES) + 11
"""Class of a cell in the row of a word."""
CLASSES = {
    "part": len(_PARTS) + 1,
    "ink": len(_INKS) + 1,
    "kind": _WORD + 1,
    "color": len(_INKS) + 1,
    "size": len(SIZES) + 1,
    "word": len(WORDS) + 1,
}
"""Number of classes of each target; class 0 is nothing."""
SPOKEN: dict[str, tuple[list[str], ...]] = {
    "kind": (
        ["nothing"],
        *([shape] for shape in SHAPES),
        *([digit, "handwritten"] for digit in "0123456789"),
        ["word"],
    ),
    "color": ([], *([color] for color in COLORS)),
    "size": ([], *([size] for size in SIZES)),
    "word": ([], *([word] for word in WORDS)),
}
"""The words for each class of a cell."""


def targets(scene: GridScene, drawing: Drawing) -> dict[str, NDArray[np.int64]]:
    """Classes of a picture of `scene`: `part` and `ink` of [81] patches, and those of `cells_of`."""
    part, ink = np.zeros((PATCHES, PATCHES), np.int64), np.zeros((PATCHES, PATCHES), np.int64)
    centers = (np.arange(PATCHES) + 0.5) / PATCHES
    for mark in drawing.marks:
        left, top, right, bottom = mark.box
        columns = (centers >= left) & (centers < right)
        rows = (centers >= top) & (centers < bottom)
        columns[min(PATCHES - 1, int((left + right) / 2 * PATCHES))] = True
        rows[min(PATCHES - 1, int((top + bottom) / 2 * PATCHES))] = True
        where = np.ix_(rows, columns)
        part[where], ink[where] = _PARTS[mark.what], _INKS[mark.color]
    return {"part": part.ravel(), "ink": ink.ravel(), **cells_of(scene)}


def cells_of(scene: GridScene) -> dict[str, NDArray[np.int64]]:
    """Classes `kind`, `color` and `size` of [9] cells, and `word` of [3] rows."""
    kind, color, size = (np.zeros(CELLS, np.int64) for _ in range(3))
    word = np.zeros(3, np.int64)
    for item in scene.items:
        if isinstance(item, PrintedWord):
            row = slice(3 * item.row, 3 * item.row + 3)
            kind[row], color[row], word[item.row] = _WORD, _INKS[item.color], WORDS.index(item.text) + 1
        else:
            color[item.cell] = _INKS[item.color]
            if isinstance(item, Shape):
                kind[item.cell], size[item.cell] = _PARTS[item.shape], SIZES.index(item.size) + 1
            else:
                kind[item.cell] = _PARTS[str(item.value)]
    return {"kind": kind, "color": color, "size": size, "word": word}


class Heads(nn.Module):
    """Linear heads on patches [images, 81, vision] and on cell features [images, 9, hidden]."""

    def __init__(self, vision: int, hidden: int) -> None:
        super().__init__()
        widths = {"part": vision, "ink": vision, "kind": hidden, "color": hidden, "size": hidden, "word": 3 * hidden}
        self.readers = nn.ModuleDict({name: nn.Linear(widths[name], count) for name, count in CLASSES.items()})

    def forward(
        self, patches: torch.Tensor, cells: torch.Tensor, classes: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The sum of the targets' cross entropies, and how many percent of their non-empty places are right."""
        losses: list[torch.Tensor] = []
        right: dict[str, float] = {}
        for name, reader in self.readers.items():
            of_patches = name in {"part", "ink"}
            given = patches if of_patches else cells
            if name == "word":
                given = given.reshape(given.shape[0], 3, -1)
            logits = reader(given).float().flatten(0, 1)
            wanted = classes[name].flatten()
            weights = torch.ones(CLASSES[name], device=logits.device)
            if of_patches:
                weights[0] = BACKGROUND
            losses.append(functional.cross_entropy(logits, wanted, weights))
            there = wanted > 0
            right[name] = 100 * float((logits.argmax(1) == wanted)[there].float().mean())
        return torch.stack(losses).sum(), right
