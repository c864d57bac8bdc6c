"""A transcriber that predicts how long each token lasts: Parakeet-TDT, Transformers' classes (Xu et al. 2023).

The encoder processes the windows in one pass. Then, for all of them at once, the decoder writes a token and moves on by
the frames that the token lasts, until every window has ended; words get their times from that. Windows, cuts and limits
are those of `parakeet_ctc`. Knows nothing about requests.
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
    def transcribe(self, windows: list[WindowRequest]) -> list[WindowTranscript]:
        """The transcripts of windows that passed `check`; without `timestamps` each is one segment."""
        features_NFM, mask_NF = self.features([window.samples for window in windows])
        encoded = self.model.get_audio_features(input_features=features_NFM, attention_mask=mask_NF.int())
        frames_N = self.model._get_subsampling_output_length(mask_NF.sum(-1))
        decoded = self._decode_greedily(encoded.pooler_output, frames_N)
        transcripts = []
        for row, (window, tokens) in enumerate(zip(windows, decoded, strict=True)):
            frames = int(frames_N[row])
            logprobs = [logprob for *_, logprob in tokens]
            words = self._group_words(tokens, frames)
            transcripts.append(self.window_transcript(window, words, logprobs, features_NFM[row][mask_NF[row]], frames))
        return transcripts

    def _decode_greedily(
        self, encoded_NTC: torch.Tensor, frames_N: torch.Tensor
    ) -> list[list[tuple[int, int, int, float]]]:
        """(token, first frame, frames that it lasts, log-probability) of each token of each row."""
        model, config = self.model, self.model.config
        rows, last = torch.arange(len(frames_N), device=self.device), frames_N - 1
        start = getattr(model.generation_config, "decoder_start_token_id", None)
        tokens = torch.full_like(frames_N, config.blank_token_id if start is None else start)
        frame_N, symbols_N = torch.zeros_like(frames_N), torch.zeros_like(frames_N)
        durations = torch.tensor(list(config.durations), device=self.device)
        cache = ParakeetRNNTDecoderCache(config)
        found: list[list[tuple[int, int, int, float]]] = [[] for _ in range(len(frames_N))]
        while bool((frame_N < frames_N).any()):
            predicted = model.decoder(tokens[:, None], cache=cache)
            encoded = encoded_NTC[rows, torch.minimum(frame_N, last)][:, None]
            logits = model.joint(decoder_hidden_states=predicted, encoder_hidden_states=encoded)[:, 0].float()
            token_logits, duration_logits = logits[:, : config.vocab_size], logits[:, config.vocab_size :]
            best, tokens = token_logits.max(-1)
            blank = tokens == config.blank_token_id
            moved = durations[duration_logits.argmax(-1)]
            symbols_N = torch.where(blank | (moved > 0), 0, symbols_N + 1)
            # A blank must move on, and so must too many tokens at one frame.
            stuck = (moved == 0) & (blank | (symbols_N >= model.max_symbols_per_step))
            symbols_N, moved = torch.where(stuck, 0, symbols_N), torch.where(stuck, 1, moved)
            logprobs = best - token_logits.logsumexp(-1)
            columns = (tokens, frame_N, moved, logprobs, (frame_N < frames_N) & ~blank)
            for row, (token, first, length, logprob, is_token) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            ):
                if is_token:
                    found[row].append((token, first, length, logprob))
            frame_N = frame_N + moved
        return found

    def _group_words(self, tokens: list[tuple[int, int, int, float]], frames: int) -> list[WordFrames]:
        """Words of a row of `frames` frames."""
        words: list[WordFrames] = []
        for token, first, length, _ in tokens:
            end = min(frames, max(first + length, first + 1))
            if token in self.word_starts or not words:
                words.append(WordFrames([token], first, end))
            else:
                words[-1] = WordFrames([*words[-1].token_ids, token], words[-1].first, max(end, words[-1].end))
        return words


def load_tdt(directory: Path, card: Card, *, device: torch.device) -> TDTTranscriber:
    """Load a Parakeet-TDT model in float32. Raises as `parakeet_ctc.load_ctc` does."""
    return TDTTranscriber(*load_parakeet(ParakeetForTDT, directory, card, device=device))
