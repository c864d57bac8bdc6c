"""What a transcriber is: windows of samples in, text tokens with times out, whatever its architecture.

A long recording goes window by window; each says how far it moves on, so that the next begins where no word is cut, and
a unit of work and its memory do not grow with the recording. Does not know requests or text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from tessera.models.speech_random import RandomStream
from tessera.models.speech_synthesis import require_kind
from tessera.wire.engine import TranscriptSegment
from tessera.wire.models import Card


@dataclass(frozen=True)
class Window:
    """What was heard in one window. Times are seconds from the window's beginning; text tokens only."""

    segments: list[TranscriptSegment]
    advance_s: float


class Transcriber(Protocol):
    """A loaded model."""

    model: Any
    card: Card
    """Completed with what the configuration says."""
    device: torch.device

    @property
    def sample_rate(self) -> int:
        """Samples a second of what it listens to."""
        ...

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """Codes that `language` may be; empty when the model knows English alone."""
        ...

    @property
    def has_timestamps(self) -> bool:
        """Whether the model can tell times inside a window."""
        ...

    def features(self, samples: np.ndarray[Any, Any]) -> torch.Tensor:
        """Features of float32 samples [n], at most a window; what their shape is, is the model's business."""
        ...

    def detect_language(self, features: torch.Tensor) -> str:
        """Code of the likeliest language."""
        ...

    def transcribe(
        self,
        features: torch.Tensor,
        *,
        seconds: float,
        language: str,
        prompt_ids: list[int],
        temperature: float,
        timestamps: bool,
        random: RandomStream,
    ) -> Window:
        """One window.

        Args:
            features: see `features`.
            seconds: of audio in the window; one that is shorter than `window_s` is the recording's last.
            language: one of `languages`, or English.
            prompt_ids: what was said before; may be empty.
            temperature: 0 takes the likeliest token.
            timestamps: whether times inside the window are wanted.
            random: what is drawn comes from it.

        Raises:
            InvalidRequestError: the model does not have the language, or takes no such prompt or temperature.
        """
        ...


def load_transcriber(directory: Path, card: Card, *, device: torch.device) -> Transcriber:
    """Load a transcriber in float32.

    Raises:
        ModelLoadError: another architecture, pickled, missing or damaged weights, no feature settings.
    """
    # Imported here: both name the types above.
    from tessera.models.speech_ctc import load_ctc  # noqa: PLC0415
    from tessera.models.speech_whisper import load_whisper  # noqa: PLC0415

    loaders: dict[str, Callable[..., Transcriber]] = {"whisper": load_whisper, "parakeet_ctc": load_ctc}
    kind = require_kind(directory, tuple(loaders), "transcription")
    return loaders[kind](directory, card, device=device)
