"""A transcriber that says how long each token lasts: Parakeet-TDT, Transformers' classes (Xu et al. 2023).

One pass of the encoder reads the windows; then, for all of them at once, the decoder writes a token and moves on by the
frames that it lasts, until every window has ended. Words have their times from that. Windows, cuts and limits are those
of `speech_ctc`. Does not know requests.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import ParakeetForTDT
from transformers.models.parakeet.generation_parakeet import ParakeetRNNTDecoderCache

from tessera.speech.transcription.parakeet_ctc import CTCTranscriber, WordFrames, load_parakeet
from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.wire.models import Card


class TDTTranscriber(CTCTranscriber):
    """Implements `tessera.speech.transcription.transcriber.Transcriber`."""

    _lead = 0.0

    @torch.inference_mode()
    def transcribe(self, pieces: list[WindowRequest]) -> list[WindowTranscript]:
        """What is said in windows that were checked; without `timestamps` each is one segment."""
        features_NFM, mask_NF = self.features([piece.samples for piece in pieces])
        encoded = self.model.get_audio_features(input_features=features_NFM, attention_mask=mask_NF.int())
        frames_N = self.model._get_subsampling_output_length(mask_NF.sum(-1))
        said = self._decoded(encoded.pooler_output, frames_N)
        windows = []
        for row, (piece, tokens) in enumerate(zip(pieces, said, strict=True)):
            frames = int(frames_N[row])
            scores = [score for *_, score in tokens]
            windows.append(
                self.window(piece, self._timed(tokens, frames), scores, features_NFM[row][mask_NF[row]], frames)
            )
        return windows

    def _decoded(self, encoded_NTC: torch.Tensor, frames_N: torch.Tensor) -> list[list[tuple[int, int, int, float]]]:
        """Token, first frame, frames that it lasts and log-probability, of each row. Greedy."""
        model, config = self.model, self.model.config
        rows, last = torch.arange(len(frames_N), device=self.device), frames_N - 1
        start = getattr(model.generation_config, "decoder_start_token_id", None)
        tokens = torch.full_like(frames_N, config.blank_token_id if start is None else start)
        at, here = torch.zeros_like(frames_N), torch.zeros_like(frames_N)
        lasts = torch.tensor(list(config.durations), device=self.device)
        cache = ParakeetRNNTDecoderCache(config)
        found: list[list[tuple[int, int, int, float]]] = [[] for _ in range(len(frames_N))]
        while bool((at < frames_N).any()):
            heard = model.decoder(tokens[:, None], cache=cache)
            seen = encoded_NTC[rows, torch.minimum(at, last)][:, None]
            scores = model.joint(decoder_hidden_states=heard, encoder_hidden_states=seen)[:, 0].float()
            words, times = scores[:, : config.vocab_size], scores[:, config.vocab_size :]
            best, tokens = words.max(-1)
            blank = tokens == config.blank_token_id
            moved = lasts[times.argmax(-1)]
            here = torch.where(blank | (moved > 0), 0, here + 1)
            # Neither a blank nor too many tokens may stand still.
            stuck = (moved == 0) & (blank | (here >= model.max_symbols_per_step))
            here, moved = torch.where(stuck, 0, here), torch.where(stuck, 1, moved)
            logprobs = best - words.logsumexp(-1)
            told = zip(*(one.tolist() for one in (tokens, at, moved, logprobs, (at < frames_N) & ~blank)), strict=True)
            for row, (token, first, length, logprob, is_said) in enumerate(told):
                if is_said:
                    found[row].append((token, first, length, logprob))
            at = at + moved
        return found

    def _timed(self, tokens: list[tuple[int, int, int, float]], frames: int) -> list[WordFrames]:
        words: list[WordFrames] = []
        for token, first, length, _ in tokens:
            end = min(frames, max(first + length, first + 1))
            if token in self.word_starts or not words:
                words.append(WordFrames([token], first, end))
            else:
                words[-1] = WordFrames([*words[-1].token_ids, token], words[-1].first, max(end, words[-1].end))
        return words


def load_tdt(directory: Path, card: Card, *, device: torch.device) -> TDTTranscriber:
    """Load one in float32. Raises as `tessera.speech.transcription.parakeet_ctc.load_ctc` does."""
    return TDTTranscriber(*load_parakeet(ParakeetForTDT, directory, card, device=device))
