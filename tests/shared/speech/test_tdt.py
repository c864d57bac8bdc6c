"""A Parakeet-TDT directory has the transcripts of Transformers, alone and beside others, and times its words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shared.speech.engine_requests import window_request
from tests.shared.speech.random_parakeet import make_encoder_config, make_tokenizer
from transformers import ParakeetFeatureExtractor, ParakeetForTDT, ParakeetTDTConfig

from tessera.hub.cards import read_card
from tessera.speech.transcription.loading import load_transcriber
from tessera.speech.transcription.parakeet_tdt import TDTTranscriber
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, melody: Any) -> Path:
    """A small one with random weights, saved by Transformers as the big ones are."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("parakeet-tdt")
    tokenizer = make_tokenizer("<pad>", "<blank>")
    blank = tokenizer.token_to_id("<blank>")
    config = ParakeetTDTConfig(
        vocab_size=blank + 1,
        pad_token_id=blank - 1,
        blank_token_id=blank,
        decoder_hidden_size=32,
        num_decoder_layers=1,
        durations=[0, 1, 2, 3, 4],
        encoder_config=make_encoder_config(0.3),
    )
    torch.manual_seed(5)
    model = ParakeetForTDT(config).eval()
    model.generation_config.decoder_start_token_id = blank
    with torch.no_grad():
        # Durations and blanks that change with the sound, and rarely none.
        model.joint.head.weight.mul_(6)
        model.encoder_projector.weight.mul_(4)
        model.joint.head.bias[blank + 1] -= 3
    model.save_pretrained(path)
    ParakeetFeatureExtractor().save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def transcriber(directory: Path) -> TDTTranscriber:
    made = load_transcriber(directory, read_card(directory), device=torch.device("cpu"))
    assert isinstance(made, TDTTranscriber)
    return made


@pytest.mark.parametrize("seconds", [0.4, 3.37, 12.3])
def test_tokens_and_their_times_are_those_of_transformers(
    seconds: float, directory: Path, transcriber: TDTTranscriber, melody: Any
) -> None:
    samples = melody(seconds)
    model = ParakeetForTDT.from_pretrained(directory).eval()
    inputs = ParakeetFeatureExtractor.from_pretrained(directory)(samples, sampling_rate=16_000, return_tensors="pt")
    made = model.generate(input_features=inputs["input_features"], attention_mask=inputs["attention_mask"])
    tokens, lasts = made.sequences[0].tolist(), made.durations[0].tolist()
    begins = [sum(lasts[:place]) for place in range(len(tokens))]
    said = [
        (token, begin)
        for place, (token, begin) in enumerate(zip(tokens, begins, strict=True))
        if place > 0 and token < model.config.pad_token_id
    ]
    window = transcriber.transcribe([window_request(samples, timestamps=True)])[0]
    words = [word for segment in window.segments for word in segment.words]
    assert [token for word in words for token in word.token_ids] == [token for token, _ in said]
    assert len(said) >= 3 * (seconds > 1)
    places = [0]
    for word in words:
        places.append(places[-1] + len(word.token_ids))
    assert [word.start for word in words] == pytest.approx([said[place][1] * 0.08 for place in places[:-1]])
    assert all(earlier.start < earlier.end <= later.end for earlier, later in pairwise(words))
    assert all(word.end <= seconds + 0.08 for word in words)


def test_windows_of_any_length_in_one_pass_have_the_transcripts_they_have_alone(
    transcriber: TDTTranscriber, melody: Any
) -> None:
    pieces = [
        window_request(melody(seconds, base=100 + 40 * seconds), timestamps=True)
        for seconds in (1.0, 9.3, 0.4, 7.3, 3.37)
    ]
    for one, together in zip(pieces, transcriber.transcribe(pieces), strict=True):
        alone = transcriber.transcribe([one])[0]
        assert [(s.token_ids, s.start, s.end, s.words) for s in together.segments] == [
            (s.token_ids, s.start, s.end, s.words) for s in alone.segments
        ]


def test_a_decoder_that_will_not_move_on_is_moved(directory: Path, melody: Any) -> None:
    stuck = load_transcriber(directory, read_card(directory), device=torch.device("cpu"))
    assert isinstance(stuck, TDTTranscriber)
    with torch.no_grad():
        blank = stuck.model.config.blank_token_id
        stuck.model.joint.head.bias[blank + 1] += 1000  # every token lasts no time
        stuck.model.joint.head.bias[blank] -= 1000  # and none is a blank
    (window,) = stuck.transcribe([window_request(melody(1.0), timestamps=True)])
    tokens = [token for segment in window.segments for token in segment.token_ids]
    assert len(tokens) == 13 * stuck.model.max_symbols_per_step


def test_the_text_side_knows_the_directory(directory: Path) -> None:
    transcripts = TranscriptTokenizer(directory)
    assert (transcripts.languages, transcripts.translates) == (["en"], False)
