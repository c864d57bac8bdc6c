"""The starter `arithmetic-moe`: a mixture of experts that answers arithmetic, sorting, units and comparisons.

Torch-free: training and judging are imported when they are called.
"""

from __future__ import annotations

from pathlib import Path

from tessera.starters.recipe import Recipe, lazily
from tessera.starters.shipped import build_from

WEIGHTS = Path(__file__).parent / "weights"


RECIPE = Recipe(
    name="arithmetic-moe",
    summary="mixture of experts for arithmetic, sorting, unit conversion and comparison",
    requires=(),
    train=lazily("tessera_text.starter.train:train"),
    evaluate=lazily("tessera_text.starter.evaluate:evaluate"),
    weights=WEIGHTS,
)

build = build_from(WEIGHTS)
