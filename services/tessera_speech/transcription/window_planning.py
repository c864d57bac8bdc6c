"""What of a recording a model hears, and who speaks when: speech is found, windows are cut, turns are told apart.

Knows what OpenAI's `chunking_strategy` means; does not know engines or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tessera.errors import InvalidRequestError
from tessera.settings.speech import SpeechSettings
from tessera.wire.audio import TranscriptionRequest, VADConfig
from tessera.wire.models import Card
from tessera_speech.recordings import windows
from tessera_speech.recordings.detectors import EnergyDetector, SpeechDetector
from tessera_speech.recordings.diarization import KnownSpeakers, SpeakerTurns, find_speaker_turns
from tessera_speech.recordings.speakers import ClusteringDiarizer, Diarizer
from tessera_speech.recordings.voice_activity import RATE, VoiceActivityModel, speech_spans
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer


@dataclass(frozen=True)
class WindowOptions:
    """How to cut a recording."""

    detection: VADConfig | None
    """How to look for speech; None leaves the cuts to the model."""
    diarized: bool


@dataclass(frozen=True)
class WindowPlan:
    """What was found."""

    windows: list[tuple[int, int]] | None
    """First sample and the one behind the last; None leaves the cuts to the model."""
    turns: SpeakerTurns | None


class WindowPlanner:
    """Cuts recordings for a model. Safe to use from several threads.

    Args:
        card: of the model.
        transcripts: its text side.
        settings: whether speech is looked for.
    """

    def __init__(self, card: Card, transcripts: TranscriptTokenizer, settings: SpeechSettings) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        assert card.window_s is not None, "the engine completes the cards it sends"
        self.rate = card.sample_rate
        self.window_s = card.window_s
        self._transcripts = transcripts
        self._settings = settings
        self._diarizer: Diarizer = ClusteringDiarizer()

    def wanted(self, body: TranscriptionRequest) -> WindowOptions:
        """How a request wants to be cut.

        Raises:
            InvalidRequestError: the model listens at another rate than speech is found at.
        """
        diarized = body.response_format == "diarized_json"
        if diarized and self.rate != RATE:
            raise InvalidRequestError(f"speakers are told apart at {RATE} samples a second alone", param="model")
        return WindowOptions(self._detection(body), diarized)

    def cut(
        self,
        samples: np.ndarray[Any, Any],
        wanted: WindowOptions,
        known: KnownSpeakers | None,
        *,
        always: bool = False,
        look: Callable[[], None] = lambda: None,
    ) -> WindowPlan:
        """Plan the windows of a recording. Blocks.

        Args:
            samples: float32 of shape [samples].
            wanted: how.
            known: speakers, where they are told apart.
            always: cut, too, what a model could cut by itself.
            look: called now and then; what it raises ends the work.
        """
        probabilities = None
        if wanted.detection is not None or wanted.diarized:
            probabilities = self._activity.probabilities(samples, look)
        found = self._windows(samples, probabilities, wanted.detection, always=always)
        look()
        turns = None
        if probabilities is not None and known is not None:
            turns = find_speaker_turns(samples, probabilities, self._diarizer, known)
        return WindowPlan(found, turns)

    def detector(self) -> SpeechDetector:
        """Finds speech in one live stream of sound."""
        return self._activity.stream() if self._settings.voice_detection else EnergyDetector()

    @cached_property
    def _activity(self) -> VoiceActivityModel:
        return VoiceActivityModel()

    def _detection(self, body: TranscriptionRequest) -> VADConfig | None:
        asked = body.chunking_strategy
        if asked == "none" or (asked is None and not self._settings.voice_detection):
            return None
        if self.rate != RATE:
            raise InvalidRequestError(
                f"speech is found at {RATE} samples a second, this model listens to {self.rate}; "
                "`chunking_strategy=none` does without",
                param="chunking_strategy",
            )
        return asked if isinstance(asked, VADConfig) else VADConfig()

    def _windows(
        self,
        samples: np.ndarray[Any, Any],
        probabilities: np.ndarray[Any, Any] | None,
        detection: VADConfig | None,
        *,
        always: bool,
    ) -> list[tuple[int, int]] | None:
        if detection is not None and probabilities is not None:
            found = speech_spans(probabilities, samples.size, detection)
        elif self._transcripts.continues and not always:
            return None
        else:
            found = [(0, samples.size)]
        return windows.pack(found, samples, rate=self.rate, window_s=self.window_s)
