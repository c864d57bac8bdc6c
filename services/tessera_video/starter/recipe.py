"""The starter `shapes-video`: a small Wan 2.2 pipeline that shows coloured shapes in motion, from a prompt alone or
from a prompt and a first frame.

Torch-free: training and evaluation are imported only when they run.
"""

from __future__ import annotations

from pathlib import Path

from tessera.starters.recipe import Recipe, lazily
from tessera.starters.shipped import build_from

WEIGHTS = Path(__file__).parent / "weights"
"""Directory of the shipped weights."""


RECIPE = Recipe(
    name="shapes-video",
    summary="text to video and image to video of coloured shapes in motion",
    requires=("scipy",),
    train=lazily("tessera_video.starter.train:train"),
    evaluate=lazily("tessera_video.starter.evaluate:evaluate"),
    weights=WEIGHTS,
    data_parallel=True,
)

build = build_from(WEIGHTS)
