"""A synthesizer of FastSpeech's class: phonemes in; durations, pitch and energy; a spectrogram; HiFi-GAN over windows.

Nothing is random: the same phonemes always give the same samples. Built on Transformers'
`FastSpeech2ConformerWithHifiGan`. Knows nothing about text, requests or file formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import FastSpeech2ConformerWithHifiGan

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.loading import load_pretrained
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import MAX_SENTENCE_S, Latents, Synthesizer
from tessera.wire.models import Card

KIND = "fastspeech2_conformer_with_hifigan"
"""`model_type` of such models."""
SAMPLE_RATE = 22_050
"""Samples per second of Transformers' checkpoints, whose configurations do not say it. A card may name another."""


class FastSpeechSynthesizer(Synthesizer):
    """A loaded FastSpeech model with its vocoder.

    Args:
        model: Transformers' model in eval mode on its device.
        card: completed with what the configuration says.
    """

    def __init__(self, model: Any, card: Card) -> None:
        super().__init__(model, card, vocoder=model.config.vocoder_config)
        self._acoustic_model = model.model
        self.vocabulary = int(model.config.model_config.vocab_size)

    @property
    def sample_rate(self) -> int:
        """Samples per second of what `decode` returns."""
        assert self.card.sample_rate is not None, "the loader completes the card"
        return self.card.sample_rate

    @torch.inference_mode()
    def latents(
        self,
        token_ids: Sequence[int],
        *,
        voices: Mapping[int, float],
        speed: float,
        random: RandomStream,  # noqa: ARG002 - nothing is random here
        rates: Sequence[float] = (),
    ) -> Latents:
        """The spectrogram of one sentence. Source: `FastSpeech2ConformerModel.forward` and its `length_regulator`.

        Args:
            token_ids: phonemes of the sentence, at least one.
            voices: weights of the card's voices by index, normalized to sum to 1; their embeddings are mixed.
            speed: factor of the model's own speaking rate; durations shrink, the pitch stays.
            random: not used.
            rates: further factor of the speed for each token; empty is 1.

        Raises:
            InvalidRequestError: a token id or a voice that the model does not have, or rates for other than all tokens.
        """
        model = self._acoustic_model
        self._check_tokens(token_ids, rates, self.vocabulary)
        ids_1N = torch.tensor([list(token_ids)], device=self.device)
        hidden_1NH = model.encoder(ids_1N, torch.ones_like(ids_1N)[:, None], return_dict=True)[0]
        speaker_1E1 = self._speaker(voices)
        if speaker_1E1 is not None:
            hidden_1NH = hidden_1NH + speaker_1E1.transpose(1, 2)
        pitch_1N1, energy_1N1 = model.pitch_predictor(hidden_1NH), model.energy_predictor(hidden_1NH)
        frames_N = model.duration_predictor(hidden_1NH)[0]
        # Transformers' `speaking_speed` is a factor of durations, not of speed.
        stretch_N = torch.full(frames_N.shape, model.config.speaking_speed / speed, device=self.device)
        if rates:
            stretch_N = stretch_N / torch.tensor(rates, device=self.device)
        counts_N = torch.round(frames_N.float() * stretch_N).long()
        if int(counts_N.sum()) == 0:
            counts_N = torch.ones_like(counts_N)
        if int(counts_N.sum()) * model.reduction_factor * self.hop > MAX_SENTENCE_S * self.sample_rate:
            raise InvalidRequestError(
                f"the model would speak longer than {MAX_SENTENCE_S:.0f} s at one sentence; send it in parts",
                param="input",
            )
        hidden_1NH = hidden_1NH + model.energy_embed(energy_1N1) + model.pitch_embed(pitch_1N1)
        spread_1TH = torch.repeat_interleave(hidden_1NH, counts_N, dim=1)
        decoded_1TH = model.decoder(spread_1TH, None, return_dict=True)[0]
        _, spectrogram_1FM = model.speech_decoder_postnet(decoded_1TH)
        token_frames = [count * model.reduction_factor for count in counts_N.tolist()]
        return Latents(spectrogram_1FM[0].T, None, token_frames)

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[Latents, slice]]) -> list[torch.Tensor]:
        """Implements `Synthesizer.decode`."""
        spectrograms_BFM = torch.stack([latents.frames_FT[:, frames].T for latents, frames in windows])
        return list(self.model.vocoder(spectrograms_BFM).float().clamp(-1, 1).cpu())

    @property
    def _speakers(self) -> int:
        return max(1, int(self.model.config.model_config.num_speakers or 1))

    def _embedded(self, voices: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._acoustic_model.speaker_id_embedding(voices)
        return found


def load_fastspeech(directory: Path, card: Card, *, device: torch.device) -> FastSpeechSynthesizer:
    """Load a synthesizer in float32.

    Raises:
        ModelLoadError: pickled, missing or damaged weights, or a card that names other voices than there are.
    """
    model = load_pretrained(FastSpeech2ConformerWithHifiGan, directory, device=device, dtype=torch.float32)
    speakers = max(1, model.config.model_config.num_speakers or 1)
    voices = card.voices or (["default"] if speakers == 1 else [f"speaker-{index}" for index in range(speakers)])
    if len(voices) != speakers:
        raise ModelLoadError(f"the card of {directory} names {len(voices)} voices, the model has {speakers}")
    return FastSpeechSynthesizer(
        model,
        msgspec.structs.replace(card, voices=voices, sample_rate=card.sample_rate or SAMPLE_RATE, tasks=["speech"]),
    )
