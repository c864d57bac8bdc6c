"""A transcriber with connectionist temporal classification (Graves et al. 2006): Parakeet-CTC, Transformers' classes.

Every frame of the encoder has a token or none, so tokens have times, and one pass reads a window. A window that the
recording goes on after is cut at the quietest place of the longest pause in its last third; words behind it are
left to the next window. Windows of like length are read together, padded and masked. Greedy and of English alone:
takes no prompt, no temperature. Does not know requests.
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
from tessera.models.loading import load_pretrained
from tessera.speech.transcription.measures import compression_ratio
from tessera.speech.transcription.transcriber import ENGLISH, SinglePassBatch, WindowRequest, WindowTranscript
from tessera.wire.engine import TranscriptSegment, TranscriptWord
from tessera.wire.models import Card

WINDOW_S = 24.0
"""The encoder attends from every frame to every other: longer windows cost more than they help."""
PAUSE_S = 0.64
"""A pause of this length ends a segment."""
SEGMENT_S = 8.0
"""A segment that is longer ends at its next word, so that subtitles can be read."""
WORD_MARK = "▁"


@dataclass(frozen=True)
class WordFrames:
    """Tokens, the frame of the first and the one behind the last."""

    token_ids: list[int]
    first: int
    end: int


class CTCTranscriber:
    """Implements `tessera.speech.transcription.transcriber.Transcriber`.

    A model that finds its tokens in another way overrides `transcribe`; see `parakeet_tdt.TDTTranscriber`.

    Args:
        model: in eval mode on its device.
        extractor: Transformers' feature extractor of the same directory.
        tokenizer: of the same directory.
        card: completed with what the configuration says.
    """

    _lead = 0.5
    """Frames between where a frame of the encoder begins and where it is centred: tokens are timed by the centre."""

    def __init__(self, model: Any, extractor: Any, tokenizer: Tokenizer, card: Card) -> None:
        self.model = model
        self.extractor = extractor
        self.card = card
        self.device: torch.device = model.device
        self.word_starts = frozenset(
            index for token, index in tokenizer.get_vocab().items() if token.startswith(WORD_MARK)
        )
        self._decode = tokenizer.decode
        self._blank = int(model.config.pad_token_id)
        self._subsampling = int(model.config.encoder_config.subsampling_factor)
        self._frame_s = self._subsampling * extractor.hop_length / extractor.sampling_rate

    @property
    def sample_rate(self) -> int:
        """Samples a second of what it listens to."""
        return int(self.extractor.sampling_rate)

    @property
    def window_s(self) -> float:
        """Length of a window, in seconds."""
        return WINDOW_S

    @property
    def languages(self) -> frozenset[str]:
        """Empty: English alone."""
        return frozenset()

    @property
    def has_timestamps(self) -> bool:
        """Always."""
        return True

    def check(self, piece: WindowRequest) -> None:
        """Refuse what the model cannot do.

        Raises:
            InvalidRequestError: another language, a prompt, a temperature or a translation.
        """
        if piece.language not in {None, ENGLISH}:
            raise InvalidRequestError(f"the model does not know the language {piece.language!r}", param="language")
        if piece.prompt_ids:
            raise InvalidRequestError("this model takes no prompt", param="prompt")
        if piece.temperature > 0:
            raise InvalidRequestError("this model takes no temperature: it has one transcript", param="temperature")
        if piece.translate:
            raise InvalidRequestError("this model does not translate", param="model")

    def batch(self, most: int) -> SinglePassBatch:
        """An empty batch of at most so many windows."""
        return SinglePassBatch(self.transcribe, most)

    def features(self, samples: list[np.ndarray[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-mel features of float32 samples [n] each, float32 of shape [windows, frames, mels], normalized over each
        window and padded to the longest; and which frames are no padding, bool of shape [windows, frames]."""
        # One by one: the extractor pads before it transforms, and its sums over padded frames take longer than those.
        made = [
            self.extractor(one, sampling_rate=self.sample_rate, return_tensors="pt", device=self.device.type)
            for one in samples
        ]
        features = pad_sequence([one["input_features"][0] for one in made], batch_first=True)
        mask = pad_sequence([one["attention_mask"][0] for one in made], batch_first=True)
        return features.to(self.device), mask.bool().to(self.device)

    @torch.inference_mode()
    def transcribe(self, pieces: list[WindowRequest]) -> list[WindowTranscript]:
        """What is said in windows that were checked; without `timestamps` each is one segment."""
        features_NFM, mask_NF = self.features([piece.samples for piece in pieces])
        logits_NTV = self.model(input_features=features_NFM, attention_mask=mask_NF.int()).logits
        best_NT, tokens_NT = logits_NTV.max(-1)
        scores_NT = (best_NT - logits_NTV.logsumexp(-1)).tolist()
        frames_N: list[int] = self.model._get_subsampling_output_length(mask_NF.sum(-1)).tolist()
        tokens: list[list[int]] = tokens_NT.tolist()
        blank = self._blank
        windows = []
        for row, (piece, frames) in enumerate(zip(pieces, frames_N, strict=True)):
            said = [score for token, score in zip(tokens[row][:frames], scores_NT[row], strict=False) if token != blank]
            words = self._words(tokens[row][:frames])
            windows.append(self.window(piece, words, said, features_NFM[row][mask_NF[row]], frames))
        return windows

    def window(
        self, piece: WindowRequest, words: list[WordFrames], said: list[float], features_FM: torch.Tensor, frames: int
    ) -> WindowTranscript:
        """The window of words.

        Args:
            piece: what was heard.
            words: in order.
            said: log-probability of each token, or of each frame that has one.
            features_FM: without padding.
            frames: that the encoder made of them.
        """
        advance_s = piece.seconds
        if piece.open_end and piece.seconds >= self.window_s:
            kept, cut = cut_at_pause(words, self._loudness(features_FM, frames))
            words, advance_s = words[:kept], min(piece.seconds, cut * self._frame_s)
        if piece.timestamps:
            parts = [self._segment(part, piece.seconds) for part in self._parts(words)]
        else:
            token_ids = [token for word in words for token in word.token_ids]
            parts = [TranscriptSegment(start=0.0, end=advance_s, token_ids=token_ids)]
        measures = {
            "avg_logprob": sum(said) / len(said) if said else 0.0,
            "compression_ratio": compression_ratio(self._decode([token for word in words for token in word.token_ids])),
        }
        return WindowTranscript([msgspec.structs.replace(part, **measures) for part in parts], advance_s)

    def _words(self, tokens: list[int]) -> list[WordFrames]:
        """Runs of one token are one; a blank between two keeps them apart."""
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
        """Mean of the features around each frame of the encoder, which is centred at its first frame of features."""
        means = features_FM.mean(-1)
        half = self._subsampling // 2
        padded = torch.nn.functional.pad(means, (half, self._subsampling * frames - len(means) - half))
        loudness: list[float] = padded.reshape(frames, self._subsampling).mean(-1).tolist()
        return loudness

    def _parts(self, words: list[WordFrames]) -> list[list[WordFrames]]:
        """Words of one segment each."""
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
                start=min(seconds, max(0.0, (word.first - self._lead) * self._frame_s)),
                end=min(seconds, max(0.0, (word.end - self._lead) * self._frame_s)),
                token_ids=word.token_ids,
            )
            for word in words
        ]
        token_ids = [token for word in words for token in word.token_ids]
        return TranscriptSegment(start=timed[0].start, end=timed[-1].end, token_ids=token_ids, words=timed)


def cut_at_pause(words: list[WordFrames], loudness: list[float]) -> tuple[int, int]:
    """Where a window ends that the recording goes on after.

    Args:
        words: of the window.
        loudness: of each of its frames.

    Returns:
        How many of the words are in front of the cut, and the frame to cut at: the quietest of the longest pause in the
        last third; without a pause there the last beginning of a word; without words there the quietest frame.
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
    """Load one in float32.

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
        if not isinstance(error, (OSError, ValueError)) and type(error) is not Exception:
            raise
        raise ModelLoadError(f"cannot read the feature settings or tokenizer in {directory}: {error}") from error
    card = msgspec.structs.replace(
        card, sample_rate=extractor.sampling_rate, window_s=WINDOW_S, tasks=["transcription"]
    )
    return model, extractor, tokenizer, card
