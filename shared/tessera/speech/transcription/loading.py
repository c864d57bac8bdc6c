"""Loads a transcription model by the `model_type` of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from tessera.models.loading import require_kind
from tessera.speech.transcription.parakeet_ctc import load_ctc
from tessera.speech.transcription.parakeet_tdt import load_tdt
from tessera.speech.transcription.transcriber import Transcriber
from tessera.speech.transcription.whisper.model import load_whisper
from tessera.wire.models import Card

LOADERS: dict[str, Callable[..., Transcriber]] = {
    "whisper": load_whisper,
    "parakeet_ctc": load_ctc,
    "parakeet_tdt": load_tdt,
}
"""The loader of each `model_type` that `config.json` may name."""


def load_transcriber(directory: Path, card: Card, *, device: torch.device) -> Transcriber:
    """Load a transcriber in float32.

    Raises:
        ModelLoadError: another architecture, pickled, missing or damaged weights, no feature settings.
    """
    kind = require_kind(directory, tuple(LOADERS), "transcription")
    return LOADERS[kind](directory, card, device=device)
