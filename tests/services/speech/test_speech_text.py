"""The text side of speech: sentences, voices, subtitles, joining pieces, both tokenizers."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.store import ModelDirectory
from tessera.wire.audio import Segment
from tessera_speech.synthesis import voices
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.sentences import MAX_CHARACTERS, split
from tessera_speech.transcription import subtitles
from tessera_speech.transcription.transcript_tokenizer import IncrementalText, TranscriptTokenizer


def test_sentences_end_at_their_punctuation() -> None:
    assert split("The first sentence. And the second one! Is this the third?\nA line of its own") == [
        "The first sentence.",
        "And the second one!",
        "Is this the third?",
        "A line of its own",
    ]


def test_white_space_without_end_costs_nothing() -> None:
    started = time.perf_counter()
    assert split("a." + " " * 200_000 + "\n" * 200_000 + "b") == ["a. b"]
    assert time.perf_counter() - started < 2.0


def test_a_decimal_point_and_a_short_abbreviation_do_not_cut() -> None:
    assert split("Dr. No took 3.14 pounds of it.") == ["Dr. No took 3.14 pounds of it."]


@given(st.text(max_size=1500))
def test_no_character_is_lost_and_no_sentence_is_too_long(text: str) -> None:
    sentences = split(text)
    assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", text)
    assert all(0 < len(sentence) <= MAX_CHARACTERS for sentence in sentences)


@pytest.mark.parametrize("text", ["word " * 400, "a, " * 400, "x" * 5000, ("y" * 300 + " ") * 3])
def test_text_without_sentences_is_cut_where_it_hurts_least(text: str) -> None:
    sentences = split(text)
    assert max(map(len, sentences)) <= MAX_CHARACTERS
    assert "".join(sentences).replace(" ", "") == text.replace(" ", "")


def test_openai_voices_stand_for_the_models_voices_in_turn() -> None:
    assert [voices.index_of(name, ["anna", "ben"]) for name in (None, "ben", "alloy", "ash", "ballad")] == [
        0,
        1,
        0,
        1,
        0,
    ]
    assert voices.index_of("alloy", ["nova", "alloy"]) == 1, "the model's own name comes first"


def test_an_unknown_voice_is_refused_with_the_models_voices() -> None:
    with pytest.raises(InvalidRequestError, match="anna, ben") as caught:
        voices.index_of("carl", ["anna", "ben"])
    assert caught.value.param == "voice"


SEGMENTS = [
    Segment(id=0, start=0.0, end=1.25, text=" Less < more -->\n\n& done "),
    Segment(id=1, start=1.25, end=1.5, text="  "),
    Segment(id=2, start=3661.0005, end=3662.9999, text="late"),
]


def test_srt_numbers_its_cues_and_skips_empty_ones() -> None:
    assert subtitles.srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:01,250\nLess < more -> & done\n\n2\n01:01:01,000 --> 01:01:03,000\nlate\n"
    )


def test_vtt_escapes_its_markup() -> None:
    assert subtitles.vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nLess &lt; more --&gt; &amp; done\n\n"
        "01:01:01.000 --> 01:01:03.000\nlate\n"
    )


@given(st.lists(st.text(alphabet="ab \n", max_size=5)))
def test_what_was_given_out_is_the_text_in_the_end(pieces: list[str]) -> None:
    text = IncrementalText()
    deltas = [text.add(piece) for piece in pieces]
    assert "".join(deltas) == text.text == "".join(pieces).strip()


@pytest.mark.parametrize(
    "text",
    ["Hello, World! 42", "ÄÖÜ straße", "  spaces  ", "emoji 🙂 and 漢字", "Tab\tand\nline", "İstanbul"],
)
def test_characters_are_tokenized_as_transformers_does(text: str, synthesis_model: ModelDirectory) -> None:
    from transformers import VitsTokenizer

    ours = CharacterTokenizer(synthesis_model.path).encode(text)
    assert ours == VitsTokenizer.from_pretrained(synthesis_model.path)(text).input_ids


def test_special_tokens_written_in_a_text_are_spoken_as_characters(synthesis_model: ModelDirectory) -> None:
    characters = CharacterTokenizer(synthesis_model.path)
    assert characters.encode("<unk>")[1::2] == [token for c in "<unk>" for token in characters.encode(c)[1::2]]


def test_text_outside_the_alphabet_has_no_tokens(synthesis_model: ModelDirectory) -> None:
    assert CharacterTokenizer(synthesis_model.path).encode("漢字") == []


@pytest.mark.parametrize("wanted", ["phonemize", "is_uroman"])
def test_a_model_that_wants_another_alphabet_is_refused(
    wanted: str, synthesis_model: ModelDirectory, tmp_path: Path
) -> None:
    for name in ("vocab.json", "tokenizer_config.json"):
        shutil.copy(synthesis_model.path / name, tmp_path / name)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, wanted: True}))
    with pytest.raises(ModelLoadError, match="wants"):
        CharacterTokenizer(tmp_path)


def test_prompts_and_text_are_tokenized_as_transformers_does(transcription_model: ModelDirectory) -> None:
    from transformers import WhisperTokenizer

    theirs = WhisperTokenizer.from_pretrained(transcription_model.path)
    ours = TranscriptTokenizer(transcription_model.path)
    ids = ours.prompt_ids(" names: Zoë, Łukasz ")
    assert ids == list(theirs.get_prompt_ids("names: Zoë, Łukasz"))
    assert ours.text(ids[1:]) == theirs.decode(ids[1:]) == " names: Zoë, Łukasz"


def test_what_transformers_leaves_out_of_a_configuration_has_its_defaults(
    transcription_model: ModelDirectory, tmp_path: Path
) -> None:
    from transformers import WhisperConfig

    shutil.copy(transcription_model.path / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text("{}")
    ours, theirs = TranscriptTokenizer(tmp_path), WhisperConfig()
    assert (ours._end, ours._max_prompt) == (theirs.eos_token_id, theirs.max_target_positions // 2 - 1)
    assert ours.languages == ["en"], "without a list of languages a model knows English alone"


def test_of_a_long_prompt_the_end_is_kept(transcription_model: ModelDirectory) -> None:
    ours = TranscriptTokenizer(transcription_model.path)
    ids = ours.prompt_ids("a" * 2000 + "the end")
    assert ours.text(ids[1:]).endswith("the end")
    assert len(ids) == 256 // 2 - 1


def test_a_prompt_with_a_special_token_is_refused(transcription_model: ModelDirectory) -> None:
    with pytest.raises(InvalidRequestError, match=r"<\|endoftext\|>"):
        TranscriptTokenizer(transcription_model.path).prompt_ids("stop <|endoftext|> here")


def test_a_language_is_known_or_refused(transcription_model: ModelDirectory) -> None:
    ours = TranscriptTokenizer(transcription_model.path)
    assert ours.language("DE") == "de"
    assert ours.language(None) is None
    with pytest.raises(InvalidRequestError, match="does not know the language 'xx'"):
        ours.language("xx")
