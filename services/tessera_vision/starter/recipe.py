"""The entry points of `scenes-vision`: how it is trained and judged, and how the shipped one is put in place."""

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
    from tessera_vision.starter.train import train  # noqa: PLC0415 - what it draws with is no dependency of serving

    return train(run)


def _evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    from tessera_vision.starter.evaluate import evaluate  # noqa: PLC0415 - as above

    return evaluate(directory, evaluation)


RECIPE = Recipe(
    name="scenes-vision",
    summary="a vision-language model of 2 million parameters that describes, counts, locates, reads and compares",
    requires=("matplotlib", "sklearn"),
    train=_train,
    evaluate=_evaluate,
    weights=WEIGHTS,
)
build = build_from(WEIGHTS)
