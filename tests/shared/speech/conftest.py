"""What tests of the speech engine share: see `fixtures`."""

from __future__ import annotations

from tests.shared.speech.fixtures import (
    codec_model,
    fastspeech_model,
    melody_fixture,
    models_dir,
    synthesis_model,
    transcription_model,
)

__all__ = [
    "codec_model",
    "fastspeech_model",
    "melody_fixture",
    "models_dir",
    "synthesis_model",
    "transcription_model",
]
