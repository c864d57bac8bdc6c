"""FastSpeech: Transformers' waveform for the same phonemes, in windows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from transformers import FastSpeech2ConformerWithHifiGan

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.store import ModelDirectory
from tessera.speech.synthesis.fastspeech import FastSpeechSynthesizer, load_fastspeech
from tessera.speech.synthesis.random_stream import RandomStream

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def synthesizer(fastspeech_model: ModelDirectory) -> FastSpeechSynthesizer:
    torch.set_num_threads(1)
    return load_fastspeech(fastspeech_model.path, fastspeech_model.card, device=CPU)


@pytest.mark.parametrize(("voice", "speed"), [(0, 1.0), (1, 1.0), (1, 0.5), (0, 1.7)])
def test_the_waveform_is_that_of_transformers_also_in_windows(
    voice: int, speed: float, synthesizer: FastSpeechSynthesizer, fastspeech_model: ModelDirectory
) -> None:
    ids = torch.randint(2, 60, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    reference = FastSpeech2ConformerWithHifiGan.from_pretrained(fastspeech_model.path).eval()
    reference.model.config.speaking_speed = 1 / speed
    with torch.no_grad():
        made = reference(torch.tensor([ids]), speaker_ids=torch.tensor([voice]))
    whole = made.waveform[0]
    latents = synthesizer.latents(ids, voices={voice: 1.0}, speed=speed, random=RandomStream(0, CPU))
    sounding = synthesizer.vocoder_progress(latents)
    parts = []
    while not sounding.finished:
        samples = synthesizer.decode([(latents, sounding.window)])[0]
        fresh = sounding.advance()
        parts.append(samples[fresh.start * synthesizer.hop : fresh.stop * synthesizer.hop])
    assert len(parts) > 1, "in several windows"
    joined = torch.cat(parts)
    assert joined.shape == whole.shape
    assert whole.abs().max() > 0.01
    assert (joined - whole).abs().max() < 1e-4
    assert sum(latents.token_frames) * synthesizer.hop == joined.numel()


def test_rates_change_the_length_of_their_tokens_alone(synthesizer: FastSpeechSynthesizer) -> None:
    options: dict[str, Any] = {"voices": {0: 1.0}, "speed": 1.0, "random": RandomStream(0, CPU)}
    plain = synthesizer.latents([5, 6, 7], **options).token_frames
    slow = synthesizer.latents([5, 6, 7], rates=[1.0, 0.5, 1.0], **options).token_frames
    assert slow == [plain[0], 2 * plain[1], plain[2]]


def test_voices_are_mixed_and_unknown_ones_refused(synthesizer: FastSpeechSynthesizer) -> None:
    def frames(voices: dict[int, float]) -> torch.Tensor:
        return synthesizer.latents([5, 6, 7], voices=voices, speed=1.0, random=RandomStream(0, CPU)).frames_FT

    found = [frames(voices) for voices in ({0: 1.0}, {1: 1.0}, {0: 0.5, 1: 0.5})]
    assert len({tuple(one.flatten().tolist()) for one in found}) == 3
    for voices in ({2: 1.0}, {}):
        with pytest.raises(InvalidRequestError):
            frames(voices)
    with pytest.raises(InvalidRequestError):
        synthesizer.latents([99], voices={0: 1.0}, speed=1.0, random=RandomStream(0, CPU))


def test_a_card_with_other_voices_is_refused(fastspeech_model: ModelDirectory) -> None:
    card = msgspec.structs.replace(fastspeech_model.card, voices=["only"])
    with pytest.raises(ModelLoadError, match="names 1 voices, the model has 2"):
        load_fastspeech(fastspeech_model.path, card, device=CPU)
