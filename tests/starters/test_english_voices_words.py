"""When words are said, as the speech service tells it, is when an independent recognizer finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly

from tessera.hub.cards import read_card
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import load_synthesizer
from tessera_speech.starter.synthesis.recipe import WEIGHTS, build
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.speech_plan import plan_text, word_times

TEXT = "Every large picture is made of 12 small stones."
SAID = "every large picture is made of twelve small stones"
HEARD_RATE = 16_000
FRAME_S = 0.01


def recognized(samples: np.ndarray[Any, Any], rate: int) -> dict[str, float]:
    """When each word begins, by pocketsphinx told what is said."""
    import pocketsphinx

    decoder = pocketsphinx.Decoder(samprate=HEARD_RATE, loglevel="FATAL")
    decoder.set_align_text(SAID)
    sound = resample_poly(samples.astype(np.float64), 320, 441) if rate == 22_050 else samples
    loud = sound * (12_000 / np.abs(sound).max())
    decoder.start_utt()
    decoder.process_raw(loud.astype(np.int16).tobytes(), full_utt=True)
    decoder.end_utt()
    return {entry.word.partition("(")[0]: entry.start_frame * FRAME_S for entry in decoder.seg()}


@pytest.mark.skipif(not (WEIGHTS / "model.safetensors").is_file(), reason="no trained weights in this checkout")
@pytest.mark.parametrize("voice", [0, 1])
def test_words_are_said_when_it_is_told(voice: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    build(tmp_path, lambda _line: None)
    synthesizer = load_synthesizer(tmp_path, read_card(tmp_path), device=torch.device("cpu"))
    plan = plan_text(TEXT, CharacterTokenizer(tmp_path))
    (sentence,), (marks,) = plan.sentences, plan.words
    latents = synthesizer.latents(
        sentence.token_ids, voices={voice: 1.0}, speed=0.9, random=RandomStream(0, synthesizer.device)
    )
    (samples,) = synthesizer.decode([(latents, slice(0, latents.frames_FT.shape[1]))])
    token_samples = [frames * synthesizer.hop for frames in latents.token_frames]
    told = word_times(marks, token_samples, begin=0, rate=synthesizer.sample_rate)
    found = recognized(samples.numpy(), synthesizer.sample_rate)
    assert [word.word for word in told] == [*TEXT.removesuffix(".").split()]
    apart = [abs(word.start - found["twelve" if word.word == "12" else word.word.lower()]) for word in told]
    assert np.median(apart) < 0.1, apart  # as far apart as aligners are in fluent speech
    assert max(apart) < 0.2, apart
