"""The starter `shapes-video`: a small Wan 2.2 pipeline that shows coloured shapes in motion, from a prompt alone or
from a prompt and a first frame.

Torch-free: training and judging are imported when they are asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tessera.starters.recipe import Evaluation, Measure, Recipe
from tessera.starters.shipped import build_from
from tessera.wire.models import Card

if TYPE_CHECKING:
    from tessera.starters.run import Run

WEIGHTS = Path(__file__).parent / "weights"


def _train(run: Run) -> Card:
    from tessera_video.starter.train import train  # noqa: PLC0415 - torch: only now

    return train(run)


def _evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    from tessera_video.starter.evaluate import evaluate  # noqa: PLC0415 - torch: only now

    return evaluate(directory, evaluation)


RECIPE = Recipe(
    name="shapes-video",
    summary="text to video and image to video of coloured shapes in motion",
    requires=("scipy",),
    train=_train,
    evaluate=_evaluate,
    weights=WEIGHTS,
)

build = build_from(WEIGHTS)
