"""Fixtures of speech tests: models with random weights, made once per test process, and samples to transcribe.

`tests/shared/speech` and `tests/services/speech` import them in their conftest.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.hub.cards import write_card
from tessera.hub.store import ModelDirectory, ensure

SPEECH = "tiny-random-speech"
TRANSCRIPTION = "tiny-random-transcription"
CODEC = "tiny-random-csm"
FASTSPEECH = "tiny-random-fastspeech"


def make_model(builder: str, directory: Path) -> ModelDirectory:
    """A model directory written by a module beside this one; imported here, because it imports Transformers."""
    module = importlib.import_module(f"tests.shared.speech.{builder}")
    directory.mkdir(parents=True)
    return ModelDirectory(directory, write_card(directory, module.build(directory)))


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def synthesis_model(models_dir: Path) -> ModelDirectory:
    return make_model("random_synthesis", models_dir / SPEECH)


@pytest.fixture(scope="session")
def transcription_model(models_dir: Path) -> ModelDirectory:
    return make_model("random_transcription", models_dir / TRANSCRIPTION)


@pytest.fixture(scope="session")
def fastspeech_model(models_dir: Path) -> ModelDirectory:
    return make_model("random_fastspeech", models_dir / FASTSPEECH)


@pytest.fixture(scope="session")
def codec_model(models_dir: Path) -> ModelDirectory:
    """The starter `tiny-random-csm`, made as a service would."""
    return ensure(CODEC, models_dir)


def melody(seconds: float, rate: int = 16_000, base: float = 220.0) -> np.ndarray[Any, Any]:
    """float32 samples that change over time, so that windows differ."""
    time_s = np.arange(int(seconds * rate)) / rate
    sweep = np.sin(2 * np.pi * (base * time_s + 15 * np.sin(2 * np.pi * 0.7 * time_s)))
    return (0.4 * sweep * np.sin(2 * np.pi * 3 * time_s)).astype(np.float32)


@pytest.fixture(scope="session", name="melody")
def melody_fixture() -> Callable[..., np.ndarray[Any, Any]]:
    return melody
