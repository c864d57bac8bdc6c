"""The entry points of `scenes-vision`: its recipe, and the function that installs the shipped model."""

from __future__ import annotations

from pathlib import Path

from tessera.starters.recipe import Recipe, lazily
from tessera.starters.shipped import build_from

WEIGHTS = Path(__file__).parent / "weights"


RECIPE = Recipe(
    name="scenes-vision",
    summary="a vision-language model of 2 million parameters that describes, counts, locates, reads and compares",
    requires=("matplotlib", "sklearn"),
    train=lazily("tessera_vision.starter.train:train"),
    evaluate=lazily("tessera_vision.starter.evaluate:evaluate"),
    weights=WEIGHTS,
)
build = build_from(WEIGHTS)
