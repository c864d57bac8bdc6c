"""A synthesizer: token ids of a sentence in, samples out in windows. VITS (also MMS-TTS) on Transformers' class.

The text side (encoder, durations, flow) is computed once per sentence: it is the small part, and everything random is
in it. The vocoder then runs over windows of the sentence's frames, each with as much context as its convolutions reach,
so that the joined windows equal a pass over the whole sentence. Windows of one length, of several sentences, share a
forward. Knows nothing about text, requests or file formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import VitsModel

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.loading import load_pretrained, require_kind
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vocoder_windows import VocoderProgress, hifigan_reach
from tessera.wire.models import Card

KINDS = ("vits",)
"""`model_type` of the models that `load_synthesizer` takes."""
MAX_SENTENCE_S = 600.0
"""Most seconds of a sentence, whose text has at most a few hundred characters; longer ones are refused."""
GPU_WINDOWS_PER_FORWARD = 8
"""Windows in one forward on a GPU. A CPU gains nothing from more than one (measured: 1.0 to 0.4 times the
throughput)."""


@dataclass
class Latents:
    """A sentence before its vocoder.

    Attributes:
        frames_FT: input of the vocoder.
        speaker_E1: embedding of the voice that conditions the vocoder; None without one.
        token_frames: frames that each token lasts.
    """

    frames_FT: torch.Tensor
    speaker_E1: torch.Tensor | None
    token_frames: list[int]


class Synthesizer:
    """A loaded VITS model.

    Args:
        model: Transformers' model in eval mode on its device.
        card: completed with what the configuration says.
        vocoder: configuration of the HiFi-GAN, where it is not the model's own.
    """

    def __init__(self, model: Any, card: Card, vocoder: Any = None) -> None:
        self.model = model
        self.card = card
        self.device: torch.device = model.device
        self.windows_per_forward = GPU_WINDOWS_PER_FORWARD if self.device.type == "cuda" else 1
        config = model.config if vocoder is None else vocoder
        self.hop = 1
        for rate in config.upsample_rates:
            self.hop *= rate
        self.reach = hifigan_reach(
            config.upsample_rates,
            config.upsample_kernel_sizes,
            config.resblock_kernel_sizes,
            config.resblock_dilation_sizes,
        )

    @property
    def sample_rate(self) -> int:
        """Samples per second of what `decode` returns."""
        return int(self.model.config.sampling_rate)

    def vocoder_progress(self, latents: Latents, *, ahead_s: float = 0.0) -> VocoderProgress:
        """The windows in which to decode a sentence that follows `ahead_s` seconds of audio of the same text."""
        frame_s = self.hop / self.sample_rate
        return VocoderProgress(latents.frames_FT.shape[1], reach=self.reach, frame_s=frame_s, ahead_s=ahead_s)

    @torch.inference_mode()
    def latents(
        self,
        token_ids: Sequence[int],
        *,
        voices: Mapping[int, float],
        speed: float,
        random: RandomStream,
        rates: Sequence[float] = (),
    ) -> Latents:
        """The text side of one sentence. Source: `VitsModel.forward` of Transformers, which does not return durations.

        Args:
            token_ids: tokens of the sentence, at least one.
            voices: weights of the card's voices by index, normalized to sum to 1; their embeddings are mixed.
            speed: factor of the model's own speaking rate; durations shrink, the pitch stays.
            random: random numbers for the durations and the prior.
            rates: further factor of the speed for each token; empty is 1.

        Raises:
            InvalidRequestError: a token id or a voice that the model does not have, or rates for other than all tokens.
        """
        model, config = self.model, self.model.config
        self._check_tokens(token_ids, rates, config.vocab_size)
        speaker_1E1 = self._speaker(voices)
        ids_1N = torch.tensor([list(token_ids)], device=self.device)
        mask_11N = torch.ones((1, 1, len(token_ids)), dtype=self.model.dtype, device=self.device)
        with random.active():
            encoded = model.text_encoder(input_ids=ids_1N, padding_mask=mask_11N.transpose(1, 2), return_dict=True)
            hidden_1HN = encoded.last_hidden_state.transpose(1, 2)
            if config.use_stochastic_duration_prediction:
                logarithm_11N = model.duration_predictor(
                    hidden_1HN, mask_11N, speaker_1E1, reverse=True, noise_scale=model.noise_scale_duration
                )
            else:
                logarithm_11N = model.duration_predictor(hidden_1HN, mask_11N, speaker_1E1)
            scale = 1.0 / (model.speaking_rate * speed)
            frames_N = (torch.exp(logarithm_11N) * mask_11N * scale)[0, 0]
            if rates:
                frames_N = frames_N / torch.tensor(rates, device=self.device)
            frames_N = torch.ceil(frames_N)
            if not float(frames_N.sum()) * self.hop / self.sample_rate <= MAX_SENTENCE_S:
                raise InvalidRequestError(
                    f"the model would speak longer than {MAX_SENTENCE_S:.0f} s at one sentence; send it in parts",
                    param="input",
                )
            counts_N = frames_N.long()
            if int(counts_N.sum()) == 0:
                counts_N[-1] = 1
            mean_1FT, deviation_1FT = (
                torch.repeat_interleave(prior_1NF, counts_N, dim=1).transpose(1, 2)
                for prior_1NF in (encoded.prior_means, encoded.prior_log_variances)
            )
            prior_1FT = mean_1FT + torch.randn_like(mean_1FT) * torch.exp(deviation_1FT) * model.noise_scale
            frames_mask_11T = torch.ones((1, 1, prior_1FT.shape[2]), dtype=prior_1FT.dtype, device=self.device)
            latents_1FT = model.flow(prior_1FT, frames_mask_11T, speaker_1E1, reverse=True)
        speaker_E1 = None if speaker_1E1 is None else speaker_1E1[0]
        return Latents(latents_1FT[0], speaker_E1, [int(count) for count in counts_N])

    @torch.inference_mode()
    def decode(self, windows: Sequence[tuple[Latents, slice]]) -> list[torch.Tensor]:
        """Samples of windows of equal length, in one forward.

        Args:
            windows: sentences, and the frames of each to decode.

        Returns:
            Samples of each window, float32 [frames * hop] on the CPU, within -1 and 1.
        """
        frames_BFT = torch.stack([latents.frames_FT[:, frames] for latents, frames in windows])
        speakers = [latents.speaker_E1 for latents, _ in windows if latents.speaker_E1 is not None]
        waves_B1S = self.model.decoder(frames_BFT, torch.stack(speakers) if speakers else None)
        return list(waves_B1S[:, 0].float().clamp(-1, 1).cpu())

    def synthesize(self, token_ids: list[int], *, voice: int, speed: float, random: RandomStream) -> torch.Tensor:
        """A whole sentence in one voice; see `latents` and `decode`."""
        latents = self.latents(token_ids, voices={voice: 1.0}, speed=speed, random=random)
        return self.decode([(latents, slice(0, latents.frames_FT.shape[1]))])[0]

    @staticmethod
    def _check_tokens(token_ids: Sequence[int], rates: Sequence[float], vocabulary: int) -> None:
        if not token_ids or min(token_ids) < 0 or max(token_ids) >= vocabulary:
            raise InvalidRequestError(f"token ids must be 0 to {vocabulary - 1}, at least one", param="input")
        if rates and len(rates) != len(token_ids):
            raise InvalidRequestError(f"{len(rates)} rates for {len(token_ids)} tokens", param="input")

    @property
    def _speakers(self) -> int:
        return max(1, int(self.model.config.num_speakers))

    def _embedded(self, voices: torch.Tensor) -> torch.Tensor:
        """Embeddings of speakers [V, E]."""
        found: torch.Tensor = self.model.embed_speaker(voices)
        return found

    def _speaker(self, voices: Mapping[int, float]) -> torch.Tensor | None:
        """The embedding [1, E, 1] of a voice or a mixture; None where a model has one voice."""
        count = self._speakers
        if not voices or any(not 0 <= index < count for index in voices):
            raise InvalidRequestError(f"voices {sorted(voices)} are not 0 to {count - 1}", param="voice")
        if count == 1:
            return None
        indices = sorted(voices)
        found_VE = self._embedded(torch.tensor(indices, device=self.device))
        if len(indices) == 1:
            return found_VE[0][None, :, None]
        weights_V = torch.tensor([voices[index] for index in indices], dtype=found_VE.dtype, device=self.device)
        return ((weights_V / weights_V.sum()) @ found_VE)[None, :, None]


def load_synthesizer(directory: Path, card: Card, *, device: torch.device) -> Synthesizer:
    """Load a synthesizer in float32.

    Raises:
        ModelLoadError: another architecture, pickled, missing or damaged weights.
    """
    require_kind(directory, KINDS, "speech synthesis")
    model = load_pretrained(VitsModel, directory, device=device, dtype=torch.float32)
    speakers = max(1, model.config.num_speakers)
    voices = card.voices or (["default"] if speakers == 1 else [f"speaker-{index}" for index in range(speakers)])
    if len(voices) != speakers:
        raise ModelLoadError(f"the card of {directory} names {len(voices)} voices, the model has {speakers}")
    return Synthesizer(
        model, msgspec.structs.replace(card, voices=voices, sample_rate=model.config.sampling_rate, tasks=["speech"])
    )
