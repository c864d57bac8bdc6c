"""A speech synthesizer: token ids of a sentence in, samples out. VITS (also MMS-TTS) through Transformers' own class.

Does not know text, requests or file formats.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import VitsModel

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.models.loading import load_pretrained
from tessera.models.speech_random import RandomStream
from tessera.wire.models import Card

KINDS = ("vits",)


class Synthesizer:
    """A loaded model.

    Args:
        model: in eval mode on its device.
        card: completed with what the configuration says.
    """

    def __init__(self, model: Any, card: Card) -> None:
        self.model = model
        self.card = card
        self.device: torch.device = model.device

    @property
    def sample_rate(self) -> int:
        """Samples a second of what `speak` returns."""
        return int(self.model.config.sampling_rate)

    @torch.inference_mode()
    def speak(self, token_ids: list[int], *, voice: int, speed: float, random: RandomStream) -> torch.Tensor:
        """One sentence.

        Args:
            token_ids: of the sentence, at least one.
            voice: index into the card's voices.
            speed: multiplies the model's own speaking rate; durations shrink, the pitch stays.
            random: what the durations and the prior are drawn from.

        Returns:
            float32 samples of shape [samples] on the CPU, within -1 and 1.

        Raises:
            InvalidRequestError: a token id or a voice that the model does not have.
        """
        config = self.model.config
        if not token_ids or min(token_ids) < 0 or max(token_ids) >= config.vocab_size:
            raise InvalidRequestError(f"token ids must be 0 to {config.vocab_size - 1}, at least one", param="input")
        if not 0 <= voice < max(1, config.num_speakers):
            raise InvalidRequestError(f"voice {voice} is not 0 to {config.num_speakers - 1}", param="voice")
        with random.active():
            output = self.model(
                input_ids=torch.tensor([token_ids], device=self.device),
                speaker_id=voice if config.num_speakers > 1 else None,
                speaking_rate=self.model.speaking_rate * speed,
            )
        samples: torch.Tensor = output.waveform[0].float().clamp(-1, 1).cpu()
        return samples


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


def require_kind(directory: Path, kinds: tuple[str, ...], purpose: str) -> str:
    """The architecture of a directory; one that is not of `kinds` is refused before anything is loaded.

    Raises:
        ModelLoadError: names what it is and what would do.
    """
    try:
        kind: str = json.loads((directory / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"cannot read the configuration in {directory}: {error!r}") from error
    if kind not in kinds:
        raise ModelLoadError(f"{directory} is a {kind!r} model; {purpose} knows {', '.join(kinds)}")
    return kind
