"""What tests of the speech engine share: see `fixtures`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.shared.speech.fixtures import (
    codec_model,
    fastspeech_model,
    melody_fixture,
    models_dir,
    synthesis_model,
    transcription_model,
)

from tessera.hub.store import ModelDirectory
from tessera.speech.engine import SpeechEngine
from tessera.speech.synthesis.vits import load_synthesizer
from tessera.speech.transcription.loading import load_transcriber
from tessera.wire.engine import Ready

__all__ = [
    "codec_model",
    "fastspeech_model",
    "melody_fixture",
    "models_dir",
    "synthesis_model",
    "transcription_model",
]


@pytest.fixture
def make_engine(synthesis_model: ModelDirectory, transcription_model: ModelDirectory) -> Callable[[int], SpeechEngine]:
    """Makes an engine with the random models that holds so many requests."""

    def make(max_waiting: int) -> SpeechEngine:
        cpu = torch.device("cpu")
        torch.set_num_threads(1)
        return SpeechEngine(
            load_synthesizer(synthesis_model.path, synthesis_model.card, device=cpu),
            load_transcriber(transcription_model.path, transcription_model.card, device=cpu),
            max_waiting=max_waiting,
            ready=Ready(device="cpu", cards=[], directories=[], report={}),
        )

    return make
