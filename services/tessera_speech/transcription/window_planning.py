"""Plans how a recording is transcribed: where speech is, which windows the model gets, and who speaks when.

Implements OpenAI's `chunking_strategy`. Knows nothing about engines or HTTP.
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
    """Options of a plan."""

    detection: VADConfig | None
    """Parameters of voice activity detection; None leaves the windows to the model."""
    diarized: bool
    """Whether speakers are told apart."""


@dataclass(frozen=True)
class WindowPlan:
    """The plan of a recording."""

    windows: list[tuple[int, int]] | None
    """(First sample, the one after the last) of each window; None leaves the windows to the model."""
    turns: SpeakerTurns | None
    """Turns of speakers; None where speakers are not told apart."""


class WindowPlanner:
    """Plans the windows of recordings for one model. Safe to use from several threads.

    Args:
        card: card of the model.
        tokenizer: its tokenizer.
        settings: whether speech is found by default.
    """

    def __init__(self, card: Card, tokenizer: TranscriptTokenizer, settings: SpeechSettings) -> None:
        assert card.sample_rate is not None, "the engine completes the cards it sends"
        assert card.window_s is not None, "the engine completes the cards it sends"
        self.rate = card.sample_rate
        self.window_s = card.window_s
        self._tokenizer = tokenizer
        self._settings = settings
        self._diarizer: Diarizer = ClusteringDiarizer()

    def options(self, body: TranscriptionRequest) -> WindowOptions:
        """The options that a request asks for.

        Raises:
            InvalidRequestError: the model takes audio of another sample rate than speech is found at.
        """
        diarized = body.response_format == "diarized_json"
        if diarized and self.rate != RATE:
            raise InvalidRequestError(f"speakers are told apart at {RATE} samples a second alone", param="model")
        return WindowOptions(self._detection(body), diarized)

    def plan(
        self,
        samples: np.ndarray[Any, Any],
        options: WindowOptions,
        known: KnownSpeakers | None,
        *,
        always: bool = False,
        check_stop: Callable[[], None] = lambda: None,
    ) -> WindowPlan:
        """Plan the windows of a recording. Blocks.

        Args:
            samples: float32 [samples].
            options: how to plan; see `options`.
            known: speakers with names, where speakers are told apart.
            always: whether to plan windows also for a model that could find them by itself.
            check_stop: called now and then; an exception of it ends the work.
        """
        probabilities = None
        if options.detection is not None or options.diarized:
            probabilities = self._activity.probabilities(samples, check_stop)
        found = self._windows(samples, probabilities, options.detection, always=always)
        check_stop()
        turns = None
        if probabilities is not None and known is not None:
            turns = find_speaker_turns(samples, probabilities, self._diarizer, known)
        return WindowPlan(found, turns)

    def detector(self) -> SpeechDetector:
        """A detector of speech for one live stream of audio."""
        return self._activity.stream() if self._settings.voice_detection else EnergyDetector()

    @cached_property
    def _activity(self) -> VoiceActivityModel:
        return VoiceActivityModel()

    def _detection(self, body: TranscriptionRequest) -> VADConfig | None:
        strategy = body.chunking_strategy
        if strategy == "none" or (strategy is None and not self._settings.voice_detection):
            return None
        if self.rate != RATE:
            raise InvalidRequestError(
                f"speech is found at {RATE} samples a second, this model takes {self.rate}; "
                "`chunking_strategy=none` does without",
                param="chunking_strategy",
            )
        return strategy if isinstance(strategy, VADConfig) else VADConfig()

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
        elif self._tokenizer.continues and not always:
            return None
        else:
            found = [(0, samples.size)]
        return windows.pack(found, samples, rate=self.rate, window_s=self.window_s)
