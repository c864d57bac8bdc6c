"""A transcriber of Whisper's kind: up to 30 s of samples in, tokens with times out (Radford et al. 2022).

The encoder is Transformers'; the decoder runs over all windows at once, see `batch` and `decoder`. A recording whose
windows are not planned goes window by window as Whisper's authors do it (section 3.8): the next window begins at the
last timestamp that was written, and gets the transcript so far as context. Knows nothing about requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.cpu_linear import PackedLinear, pack_linears
from tessera.models.loading import WRONG_VALUES, load_pretrained
from tessera.speech.transcription.transcriber import ENGLISH, WindowRequest
from tessera.speech.transcription.whisper.batch import WhisperBatch
from tessera.speech.transcription.whisper.segments import FallbackThresholds
from tessera.speech.transcription.whisper.token_rules import TokenRules
from tessera.speech.transcription.whisper.word_times import token_times
from tessera.wire.models import Card


class WhisperTranscriber:
    """Implements `tessera.speech.transcription.transcriber.Transcriber` and `batch.WindowModel`.

    Args:
        model: Transformers' model in eval mode on its device.
        extractor: Transformers' feature extractor of the same directory.
        tokenizer: of the same directory.
        card: completed with what the configuration says.
    """

    def __init__(self, model: Any, extractor: Any, tokenizer: Tokenizer, card: Card) -> None:
        self.model = model
        self.extractor = extractor
        self.card = card
        self.device: torch.device = model.device
        generation = model.generation_config
        multilingual = getattr(generation, "is_multilingual", True)
        languages: dict[str, int] = (getattr(generation, "lang_to_id", None) or {}) if multilingual else {}
        self._languages = {token.strip("<|>"): token_id for token, token_id in languages.items()}
        self._language_ids = torch.tensor(sorted(self._languages.values()), dtype=torch.long, device=self.device)
        self._codes = {token_id: code for code, token_id in self._languages.items()}
        self._tasks: dict[str, int] = getattr(generation, "task_to_id", None) or {}
        self._previous_token: int | None = getattr(generation, "prev_sot_token_id", None)
        self._tokenizer = tokenizer
        self.start_token = int(generation.decoder_start_token_id or model.config.decoder_start_token_id)
        """The token that starts a transcript."""
        self.end_token = int(model.config.eos_token_id)
        """The token that ends a transcript; tokens below it are text."""
        self.rules = TokenRules(generation, model.config.vocab_size, self.end_token, self.device)
        default = FallbackThresholds()
        self.thresholds = FallbackThresholds(
            compression_ratio=getattr(generation, "compression_ratio_threshold", None) or default.compression_ratio,
            avg_logprob=getattr(generation, "logprob_threshold", None) or default.avg_logprob,
            no_speech=getattr(generation, "no_speech_threshold", None) or default.no_speech,
        )
        heads = getattr(generation, "alignment_heads", None)
        layers, count = model.config.decoder_layers, model.config.decoder_attention_heads
        # Without a list, Whisper takes every head of the upper half.
        upper_half = [(layer, head) for layer in range(layers // 2, layers) for head in range(count)]
        self.alignment_heads = sorted((int(layer), int(head)) for layer, head in heads) if heads else upper_half

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that it takes."""
        return int(self.extractor.sampling_rate)

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        return float(self.extractor.chunk_length)

    @property
    def languages(self) -> frozenset[str]:
        """Codes that `language` may be; empty when the model knows English alone."""
        return frozenset(self._languages)

    @property
    def no_timestamps_token(self) -> int | None:
        """The token that asks for a transcript without timestamps; None for a model without timestamps."""
        return self.rules.no_timestamps

    def check(self, window: WindowRequest) -> None:
        """Refuse what the model cannot do.

        Raises:
            InvalidRequestError: the model does not know the language, does not translate, or the prompt leaves no room.
        """
        known = self.languages or {ENGLISH}
        if window.language is not None and window.language not in known:
            raise InvalidRequestError(f"the model does not know the language {window.language!r}", param="language")
        if window.translate and "translate" not in self._tasks:
            raise InvalidRequestError("this model does not translate", param="model")
        if len(window.prompt_ids) >= self.model.config.max_target_positions // 2:
            raise InvalidRequestError("the prompt is longer than half of the model's context", param="prompt")

    def batch(self, max_windows: int) -> WhisperBatch:
        """An empty batch of at most `max_windows` windows."""
        return WhisperBatch(self, max_windows)

    def features(self, samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Log-mel features, float32 [windows, mels, frames], of float32 samples [n] each, padded to a window."""
        found = self.extractor(samples, sampling_rate=self.sample_rate, return_tensors="pt", device=self.device.type)
        features: torch.Tensor = found.input_features.to(self.device)
        return features

    def encode(self, samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Encoder states that the decoder attends to, [windows, frames, width]."""
        encoded: torch.Tensor = self.model.model.encoder(self.features(samples)).last_hidden_state
        return encoded

    def likeliest_languages(self, logits_NV: torch.Tensor) -> list[str]:
        """Language codes, from the logits of the first token of a transcript."""
        best = self._language_ids[logits_NV[:, self._language_ids].argmax(-1)]
        return [self._codes[token] for token in best.tolist()]

    def no_speech_probabilities(self, logits_NV: torch.Tensor) -> list[float]:
        """Probabilities that nobody speaks, from the logits of the first token of a transcript; 0 if it cannot tell."""
        if self.rules.no_timestamps is None:
            return [0.0] * len(logits_NV)
        # The token before `no_timestamps` is "no speech" in every Whisper vocabulary.
        found: list[float] = (logits_NV[:, self.rules.no_timestamps - 1] - logits_NV.logsumexp(-1)).exp().tolist()
        return found

    def prompt(self, window: WindowRequest, language: str | None) -> tuple[list[int], int]:
        """Tokens before a transcript, and the index of `start_token` among them."""
        before: list[int] = []
        if self._previous_token is not None and (window.prompt_ids or window.context):
            most = self.model.config.max_target_positions // 2 - 1
            before = [self._previous_token, *[*window.prompt_ids[1:], *window.context][-(most - 1) :]]
        begun = [self.start_token]
        if self._languages:
            begun += [
                self._languages[language or ENGLISH],
                self._tasks["translate" if window.translate else "transcribe"],
            ]
        if self.rules.no_timestamps is not None and not window.timestamps:
            begun.append(self.rules.no_timestamps)
        return before + begun, len(before)

    def max_tokens(self, prompt: int) -> int:
        """Most tokens that a transcript and its prompt of `prompt` tokens may have together."""
        generation, positions = self.model.generation_config, int(self.model.config.max_target_positions)
        if generation.max_new_tokens is not None:
            return min(prompt + int(generation.max_new_tokens), positions)
        if generation.max_length is None:
            return positions
        return min(int(generation.max_length) + min(positions // 2 - 1, prompt), positions)

    def text_tokens(self, tokens: list[int]) -> list[int]:
        """`tokens` without special ones: in every Whisper vocabulary those begin with the end token."""
        return [token for token in tokens if token < self.end_token]

    def decode(self, tokens: list[int]) -> str:
        """Text of text tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def token_times(self, attention_ATF: torch.Tensor, window: WindowRequest) -> list[float]:
        """Second at which each token begins, from the attention of `alignment_heads` over the window's frames."""
        frames = len(window.samples) // self.extractor.hop_length // 2
        width = int(getattr(self.model.config, "median_filter_width", 7))
        return token_times(attention_ATF[..., : max(1, frames)], median_width=width)


def load_whisper(directory: Path, card: Card, *, device: torch.device) -> WhisperTranscriber:
    """Load a Whisper model in float32.

    Raises:
        ModelLoadError: pickled, missing or damaged weights, no feature settings or tokenizer.
    """
    model = load_pretrained(WhisperForConditionalGeneration, directory, device=device, dtype=torch.float32)
    _pack(model)
    try:
        extractor = WhisperFeatureExtractor.from_pretrained(directory, local_files_only=True)
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:
        # `tokenizers` raises plain Exception for a file that it cannot parse
        if not isinstance(error, (OSError, ValueError, *WRONG_VALUES)) and type(error) is not Exception:
            raise
        raise ModelLoadError(f"cannot read the feature settings or tokenizer in {directory}: {error}") from error
    tasks: list[Any] = ["transcription"]
    card = msgspec.structs.replace(
        card, sample_rate=extractor.sampling_rate, window_s=float(extractor.chunk_length), tasks=tasks
    )
    return WhisperTranscriber(model, extractor, tokenizer, card)


def _pack(model: Any) -> None:
    """Pack linear layers for fast CPU products, and fuse GELU into the first one of each feed-forward pair."""
    pack_linears(model)
    for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
        if isinstance(layer.fc1, PackedLinear) and model.config.activation_function == "gelu":
            layer.fc1.gelu, layer.activation_fn = True, nn.Identity()
