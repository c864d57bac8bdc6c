"""The starter `arithmetic-moe`: a mixture of experts that answers arithmetic, sorting, units and comparisons.

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
    from tessera_text.starter.train import train  # noqa: PLC0415 - torch: only now

    return train(run)


def _evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    from tessera_text.starter.evaluate import evaluate  # noqa: PLC0415 - torch: only now

    return evaluate(directory, evaluation)


RECIPE = Recipe(
    name="arithmetic-moe",
    summary="mixture of experts for arithmetic, sorting, unit conversion and comparison",
    requires=(),
    train=_train,
    evaluate=_evaluate,
    weights=WEIGHTS,
)

build = build_from(WEIGHTS)
