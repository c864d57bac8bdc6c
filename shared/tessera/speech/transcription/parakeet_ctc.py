"""A transcriber with connectionist temporal classification (Graves et al. 2006): Parakeet-CTC, Transformers' classes.

Every frame of the encoder has a token or a blank, so tokens have times, and one pass transcribes a window. A window
after which the recording goes on is cut at the quietest place of the longest pause in its last third; words after the
cut are left to the next window. Windows of similar length share a pass, padded and masked. Decoding is greedy and the
language is
English: there is no prompt and no temperature. Knows nothing about requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import ParakeetFeatureExtractor, ParakeetForCTC

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.cpu_linear import pack_linears
from tessera.models.loading import WRONG_VALUES, load_pretrained
from tessera.speech.transcription.measures import compression_ratio
from tessera.speech.transcription.transcriber import ENGLISH, SinglePassBatch, WindowRequest, WindowTranscript
from tessera.wire.engine import TranscriptSegment, TranscriptWord
from tessera.wire.models import Card

WINDOW_S = 24.0
"""Seconds of a window. The encoder attends from every frame to every other: longer windows cost more than they help."""
PAUSE_S = 0.64
"""Seconds of a pause that ends a segment."""
SEGMENT_S = 8.0
"""Seconds after which a segment ends before its next word, so that subtitles can be read."""
WORD_START = "▁"
"""SentencePiece's mark for the blank before a word."""


@dataclass(frozen=True)
class WordFrames:
    """The tokens of a word, the first frame of the encoder that has one of them, and the frame after the last."""

    token_ids: list[int]
    first: int
    end: int


class CTCTranscriber:
    """Implements `tessera.speech.transcription.transcriber.Transcriber`.

    A model that finds its tokens in another way overrides `transcribe`; see `parakeet_tdt.TDTTranscriber`.

    Args:
        model: Transformers' model in eval mode on its device.
        extractor: Transformers' feature extractor of the same directory.
        tokenizer: of the same directory.
        card: completed with what the configuration says.
    """

    _frame_center = 0.5
    """Frames between the beginning of a frame of the encoder and the point by which its token is timed, its center."""

    def __init__(self, model: Any, extractor: Any, tokenizer: Tokenizer, card: Card) -> None:
        self.model = model
        self.extractor = extractor
        self.card = card
        self.device: torch.device = model.device
        self.word_starts = frozenset(
            index for token, index in tokenizer.get_vocab().items() if token.startswith(WORD_START)
        )
        self._decode = tokenizer.decode
        self._blank = int(model.config.pad_token_id)
        self._subsampling = int(model.config.encoder_config.subsampling_factor)
        self._frame_s = self._subsampling * extractor.hop_length / extractor.sampling_rate

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that it takes."""
        return int(self.extractor.sampling_rate)

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        return WINDOW_S

    @property
    def languages(self) -> frozenset[str]:
        """Empty: the model knows English alone."""
        return frozenset()

    def check(self, window: WindowRequest) -> None:
        """Refuse what the model cannot do.

        Raises:
            InvalidRequestError: another language, a prompt, a temperature or a translation.
        """
        if window.language not in {None, ENGLISH}:
            raise InvalidRequestError(f"the model does not know the language {window.language!r}", param="language")
        if window.prompt_ids:
            raise InvalidRequestError("this model takes no prompt", param="prompt")
        if window.temperature > 0:
            raise InvalidRequestError("this model takes no temperature: it has one transcript", param="temperature")
        if window.translate:
            raise InvalidRequestError("this model does not translate", param="model")

    def batch(self, max_windows: int) -> SinglePassBatch:
        """An empty batch of at most `max_windows` windows."""
        return SinglePassBatch(self.transcribe, max_windows)

    def features(self, samples: list[np.ndarray[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-mel features and the mask of their frames.

        Args:
            samples: float32 [n] of each window.

        Returns:
            Features, float32 [windows, frames, mels], normalized over each window and padded to the longest; and a
            mask, bool [windows, frames], which is true for frames that are not padding.
        """
        # One by one: the extractor pads before it transforms, and transforming padding takes longer than the calls.
        extracted = [
            self.extractor(one, sampling_rate=self.sample_rate, return_tensors="pt", device=self.device.type)
            for one in samples
        ]
        features = pad_sequence([one["input_features"][0] for one in extracted], batch_first=True)
        mask = pad_sequence([one["attention_mask"][0] for one in extracted], batch_first=True)
        return features.to(self.device), mask.bool().to(self.device)

    @torch.inference_mode()
    def transcribe(self, windows: list[WindowRequest]) -> list[WindowTranscript]:
        """The transcripts of windows that passed `check`; without `timestamps` each is one segment."""
        features_NFM, mask_NF = self.features([window.samples for window in windows])
        logits_NTV = self.model(input_features=features_NFM, attention_mask=mask_NF.int()).logits
        best_NT, tokens_NT = logits_NTV.max(-1)
        logprobs_NT = (best_NT - logits_NTV.logsumexp(-1)).tolist()
        frames_N: list[int] = self.model._get_subsampling_output_length(mask_NF.sum(-1)).tolist()
        tokens: list[list[int]] = tokens_NT.tolist()
        blank = self._blank
        transcripts = []
        for row, (window, frames) in enumerate(zip(windows, frames_N, strict=True)):
            row_tokens = tokens[row][:frames]
            logprobs = [one for token, one in zip(row_tokens, logprobs_NT[row], strict=False) if token != blank]
            words = self._words(row_tokens)
            features_FM = features_NFM[row][mask_NF[row]]
            transcripts.append(self.window_transcript(window, words, logprobs, features_FM, frames))
        return transcripts

    def window_transcript(
        self,
        window: WindowRequest,
        words: list[WordFrames],
        logprobs: list[float],
        features_FM: torch.Tensor,
        frames: int,
    ) -> WindowTranscript:
        """The transcript of a window.

        Args:
            window: what was transcribed.
            words: words of the window, in order.
            logprobs: log-probability of each token, or of each frame that has one.
            features_FM: features of the window, without padding.
            frames: frames of the encoder for them.
        """
        advance_s = window.seconds
        if window.open_end and window.seconds >= self.window_s:
            kept, cut = cut_at_pause(words, self._loudness(features_FM, frames))
            words, advance_s = words[:kept], min(window.seconds, cut * self._frame_s)
        if window.timestamps:
            segments = [self._segment(part, window.seconds) for part in self._split_segments(words)]
        else:
            token_ids = [token for word in words for token in word.token_ids]
            segments = [TranscriptSegment(start=0.0, end=advance_s, token_ids=token_ids)]
        measures = {
            "avg_logprob": sum(logprobs) / len(logprobs) if logprobs else 0.0,
            "compression_ratio": compression_ratio(self._decode([token for word in words for token in word.token_ids])),
        }
        return WindowTranscript([msgspec.structs.replace(segment, **measures) for segment in segments], advance_s)

    def _words(self, tokens: list[int]) -> list[WordFrames]:
        """Words of the best token of each frame: a run of equal tokens is one token, and a blank separates two runs."""
        words: list[WordFrames] = []
        end = 0
        for token, run in groupby(tokens):
            first, end = end, end + len(list(run))
            if token == self._blank:
                continue
            if token in self.word_starts or not words:
                words.append(WordFrames([token], first, end))
            else:
                words[-1] = WordFrames([*words[-1].token_ids, token], words[-1].first, end)
        return words

    def _loudness(self, features_FM: torch.Tensor, frames: int) -> list[float]:
        """Mean feature around each frame of the encoder, whose center is its first frame of features."""
        means = features_FM.mean(-1)
        half = self._subsampling // 2
        padded = torch.nn.functional.pad(means, (half, self._subsampling * frames - len(means) - half))
        loudness: list[float] = padded.reshape(frames, self._subsampling).mean(-1).tolist()
        return loudness

    def _split_segments(self, words: list[WordFrames]) -> list[list[WordFrames]]:
        """The words of each segment."""
        parts: list[list[WordFrames]] = []
        for word in words:
            if (
                not parts
                or (word.first - parts[-1][-1].end) * self._frame_s >= PAUSE_S
                or (word.first - parts[-1][0].first) * self._frame_s >= SEGMENT_S
            ):
                parts.append([])
            parts[-1].append(word)
        return parts

    def _segment(self, words: list[WordFrames], seconds: float) -> TranscriptSegment:
        timed = [
            TranscriptWord(
                start=min(seconds, max(0.0, (word.first - self._frame_center) * self._frame_s)),
                end=min(seconds, max(0.0, (word.end - self._frame_center) * self._frame_s)),
                token_ids=word.token_ids,
            )
            for word in words
        ]
        token_ids = [token for word in words for token in word.token_ids]
        return TranscriptSegment(start=timed[0].start, end=timed[-1].end, token_ids=token_ids, words=timed)


def cut_at_pause(words: list[WordFrames], loudness: list[float]) -> tuple[int, int]:
    """Find the place to cut a window after which the recording goes on.

    Args:
        words: words of the window.
        loudness: loudness of each of its frames.

    Returns:
        How many of the words are before the cut, and the frame to cut at: the quietest frame of the longest pause in
        the last third; without a pause there the last beginning of a word; without words there the quietest frame.
    """
    frames = len(loudness)
    begins = [0, *(word.end for word in words)]
    ends = [*(word.first for word in words), frames]
    earliest = frames - frames // 3
    best = (0, 0, len(words), frames)
    for kept, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        first = max(begin, earliest)
        if end < first:
            continue
        cut = min(range(first, end), key=loudness.__getitem__) if end > first else end
        if 0 < cut < frames:
            best = max(best, (end - first, cut, kept, cut))
    return best[2:]


def load_ctc(directory: Path, card: Card, *, device: torch.device) -> CTCTranscriber:
    """Load a Parakeet-CTC model in float32.

    Raises:
        ModelLoadError: pickled, missing or damaged weights, no feature settings or tokenizer.
    """
    return CTCTranscriber(*load_parakeet(ParakeetForCTC, directory, card, device=device))


def load_parakeet(kind: Any, directory: Path, card: Card, *, device: torch.device) -> tuple[Any, Any, Tokenizer, Card]:
    """Model, feature extractor, tokenizer and completed card of a Parakeet directory. Raises as `load_ctc` does."""
    model = load_pretrained(kind, directory, device=device, dtype=torch.float32)
    pack_linears(model)
    try:
        extractor = ParakeetFeatureExtractor.from_pretrained(directory, local_files_only=True)
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:
        # `tokenizers` raises plain Exception for a file that it cannot parse
        if not isinstance(error, (OSError, ValueError, *WRONG_VALUES)) and type(error) is not Exception:
            raise
        raise ModelLoadError(f"cannot read the feature settings or tokenizer in {directory}: {error}") from error
    card = msgspec.structs.replace(
        card, sample_rate=extractor.sampling_rate, window_s=WINDOW_S, tasks=["transcription"]
    )
    return model, extractor, tokenizer, card
