"""A transcriber of Whisper's kind: up to 30 s of samples in, tokens with times out, by Transformers' own `generate`.

Long recordings go window by window as Whisper's authors do it (Radford et al. 2022, section 3.8): the next window
begins at the last timestamp that was written, so that no word is cut. Features are made per window, so that a unit of
work and its memory do not grow with the recording. Does not know requests or text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.loading import load_pretrained
from tessera.models.speech_random import RandomStream
from tessera.models.speech_transcription import Window
from tessera.wire.engine import TranscriptSegment
from tessera.wire.models import Card

MIN_ADVANCE_S = 0.5
"""A window that would move on by less counts as a whole: an ill model must not crawl through a recording."""
TIMESTAMP_S = 0.02
ENGLISH = "en"


class WhisperTranscriber:
    """Implements `tessera.models.speech_transcription.Transcriber`.

    Args:
        model: in eval mode on its device.
        extractor: Transformers' feature extractor of the same directory.
        card: completed with what the configuration says.
    """

    def __init__(self, model: Any, extractor: Any, card: Card) -> None:
        self.model = model
        self.extractor = extractor
        self.card = card
        self.device: torch.device = model.device
        generation = model.generation_config
        multilingual = getattr(generation, "is_multilingual", True)
        languages: dict[str, int] = (getattr(generation, "lang_to_id", None) or {}) if multilingual else {}
        self._codes = {token_id: token.strip("<|>") for token, token_id in languages.items()}
        self._end = int(model.config.eos_token_id)
        self._stamps = getattr(generation, "no_timestamps_token_id", None)

    @property
    def sample_rate(self) -> int:
        """Samples a second of what it listens to."""
        return int(self.extractor.sampling_rate)

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        return float(self.extractor.chunk_length)

    @property
    def languages(self) -> frozenset[str]:
        """Codes that `language` may be; empty when the model knows English alone."""
        return frozenset(self._codes.values())

    @property
    def has_timestamps(self) -> bool:
        """Whether the model can write times inside a window."""
        return self._stamps is not None

    def features(self, samples: np.ndarray[Any, Any]) -> torch.Tensor:
        """Log-mel features, float32 of shape [1, mels, frames], of float32 samples [n], padded to a whole window."""
        made = self.extractor(samples, sampling_rate=self.sample_rate, return_tensors="pt", device=self.device.type)
        features: torch.Tensor = made.input_features.to(self.device)
        return features

    @torch.inference_mode()
    def detect_language(self, features_1MF: torch.Tensor) -> str:
        """Code of the likeliest language."""
        if not self._codes:
            return ENGLISH
        return self._codes[int(self.model.detect_language(features_1MF)[0])]

    @torch.inference_mode()
    def transcribe(
        self,
        features_1MF: torch.Tensor,
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
            features_1MF: see `features`.
            seconds: of audio in the window before padding.
            language: one of `languages`, or English.
            prompt_ids: what was said before, from `<|startofprev|>` on; may be empty.
            temperature: 0 takes the likeliest token, more draws from `random`.
            timestamps: whether to write times inside the window.

        Raises:
            InvalidRequestError: the model does not have the language, or the prompt leaves no room for an answer.
        """
        options: dict[str, Any] = {"temperature": temperature, "force_unique_generate_call": True}
        if self._codes:
            if language not in self.languages:
                raise InvalidRequestError(f"the model does not know the language {language!r}", param="language")
            options["language"] = f"<|{language}|>"
            options["task"] = "transcribe"
        if prompt_ids:
            if len(prompt_ids) >= self.model.config.max_target_positions // 2:
                raise InvalidRequestError("the prompt is longer than half of the model's context", param="prompt")
            options["prompt_ids"] = torch.tensor(prompt_ids, device=self.device)
        timestamps = timestamps and self.has_timestamps
        if self.has_timestamps:
            options["return_timestamps"] = timestamps
        with random.active():
            made = self.model.generate(features_1MF, return_segments=True, **options)
        found = made["segments"][0]
        if not timestamps:
            tokens = [token for segment in found for token in segment["tokens"].tolist()]
            return Window([TranscriptSegment(start=0.0, end=seconds, token_ids=self._text(tokens))], seconds)
        segments = [
            TranscriptSegment(
                start=min(float(segment["start"]), seconds),
                end=min(float(segment["end"]), seconds),
                token_ids=self._text(segment["tokens"].tolist()),
            )
            for segment in found
        ]
        return Window(segments, self._advance(found[-1]["tokens"].tolist(), seconds) if found else seconds)

    def _text(self, tokens: list[int]) -> list[int]:
        """Text tokens alone: in every Whisper vocabulary the special tokens begin with the end-of-text token."""
        return [token for token in tokens if token < self._end]

    def _advance(self, last_tokens: list[int], seconds: float) -> float:
        """Where the next window begins: at the last timestamp, when the last words before it are complete."""
        assert self._stamps is not None
        ended_open = len(last_tokens) >= 2 and min(last_tokens[-2:]) > self._stamps
        advance = (last_tokens[-2] - self._stamps - 1) * TIMESTAMP_S if ended_open else seconds
        return advance if MIN_ADVANCE_S <= advance < seconds else seconds


def load_whisper(directory: Path, card: Card, *, device: torch.device) -> WhisperTranscriber:
    """Load one in float32.

    Raises:
        ModelLoadError: pickled, missing or damaged weights, no feature settings.
    """
    model = load_pretrained(WhisperForConditionalGeneration, directory, device=device, dtype=torch.float32)
    try:
        extractor = WhisperFeatureExtractor.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read the feature settings in {directory}: {error}") from error
    card = msgspec.structs.replace(
        card, sample_rate=extractor.sampling_rate, window_s=float(extractor.chunk_length), tasks=["transcription"]
    )
    return WhisperTranscriber(model, extractor, card)
