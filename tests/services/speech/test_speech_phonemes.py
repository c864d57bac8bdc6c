"""Models that read phonemes: SSML and lexicon into phonemes, words' times, and the service that speaks them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tests.shared.speech.fixtures import FASTSPEECH as NAME

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.store import ModelDirectory
from tessera.speech.synthesis.fastspeech import FastSpeechSynthesizer, load_fastspeech
from tessera.speech.synthesis.random_stream import RandomStream
from tessera_speech.text.phonemes import PhonemeTokenizer, from_ipa
from tessera_speech.text.planners import PhonemePlanner
from tessera_speech.text.speech_plan import word_times

CPU = torch.device("cpu")
HELLO = "HH AH0 L OW1"


@pytest.fixture(scope="module")
def synthesizer(fastspeech_model: ModelDirectory) -> FastSpeechSynthesizer:
    torch.set_num_threads(1)
    return load_fastspeech(fastspeech_model.path, fastspeech_model.card, device=CPU)


@pytest.fixture(scope="module")
def vocabulary(fastspeech_model: ModelDirectory) -> dict[str, int]:
    return json.loads((fastspeech_model.path / "vocab.json").read_text())


@pytest.fixture(scope="module")
def reader(fastspeech_model: ModelDirectory) -> PhonemePlanner:
    return PhonemePlanner(fastspeech_model.path)


def tokens_of(reader: PhonemePlanner, text: str) -> list[list[int]]:
    return [sentence.token_ids for sentence in reader.plan(text, markup=True, voice="low").sentences]


# ---- from text to phonemes


def test_words_of_the_lexicon_become_their_phonemes(reader: PhonemePlanner, vocabulary: dict[str, int]) -> None:
    expected = [vocabulary[name] for name in [*HELLO.split(), ",", *["DH", "EH1", "R"], "!", "<sos/eos>"]]
    assert tokens_of(reader, "Hello, there!") == [expected]
    said = [vocabulary[name] for name in ["T", "W", "EH1", "N", "T", "IY0", "W", "AH1", "N", ".", "<sos/eos>"]]
    assert tokens_of(reader, "21") == [said], "numbers are written out first, and a sentence ends"
    assert tokens_of(reader, "don’t")[0][0] == vocabulary["D"]


@pytest.mark.parametrize(
    "element",
    [
        '<phoneme alphabet="x-arpabet" ph="HH AH0 L OW1">xyz 3</phoneme>',
        '<phoneme alphabet="ipa" ph="həˈloʊ">xyz</phoneme>',
        '<phoneme ph="hə.ˈloʊ">xyz</phoneme>',
    ],
)
def test_ssml_says_phonemes(element: str, reader: PhonemePlanner, vocabulary: dict[str, int]) -> None:
    hello = [vocabulary[name] for name in HELLO.split()]
    there = [vocabulary[name] for name in ["DH", "EH1", "R"]]
    end = vocabulary["<sos/eos>"]
    assert tokens_of(reader, f"<speak>{element} there</speak>") == [[*hello, *there, vocabulary["."], end]]
    assert tokens_of(reader, f"<speak>there {element}.</speak>") == [[*there, *hello, vocabulary["."], end]]


def test_ipa_is_read_by_its_longest_sounds() -> None:
    assert from_ipa("ˈtʃɜːtʃ ˌdʒʌdʒ") == ["CH", "ER1", "CH", "JH", "AH2", "JH"]
    with pytest.raises(ValueError, match="ʘ"):
        from_ipa("tʘ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Hello stranger", "'stranger'"),
        ('<speak><phoneme ph="ʘ">x</phoneme></speak>', "line 1, column 8"),
        ('<speak><phoneme alphabet="x-arpabet" ph="QQ">x</phoneme></speak>', "'QQ' is no phoneme"),
        ('<speak><phoneme ph="">x</phoneme></speak>', "there is no phoneme"),
        ('<speak><phoneme alphabet="kirshenbaum" ph="x">x</phoneme></speak>', "ipa, x-arpabet"),
        ('<speak><phoneme ph="h"></phoneme></speak>', "is empty"),
        ("…", "nothing that can be spoken"),
    ],
)
def test_what_has_no_phonemes_is_named(text: str, says: str, reader: PhonemePlanner) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        reader.plan(text, markup=True, voice="low")
    assert says in caught.value.message
    assert caught.value.param == "input"


def test_words_have_times(reader: PhonemePlanner, synthesizer: FastSpeechSynthesizer) -> None:
    text = 'Hello <phoneme ph="həˈloʊ">you two</phoneme> there.'
    plan = reader.plan(f"<speak>{text}</speak>", markup=True, voice="low")
    (sentence,) = plan.sentences
    latents = synthesizer.latents(sentence.token_ids, voices={0: 1.0}, speed=1.0, random=RandomStream(0, CPU))
    samples = [frames * synthesizer.hop for frames in latents.token_frames]
    words = word_times(plan.words[0], samples, begin=0, rate=synthesizer.sample_rate)
    assert [word.word for word in words] == ["Hello", "you two", "there"]
    assert words[0].start == 0.0
    assert all(one.end <= other.start for one, other in itertools.pairwise(words))
    assert words[-1].end <= sum(samples) / synthesizer.sample_rate


def test_a_prosody_rate_reaches_its_phonemes(reader: PhonemePlanner) -> None:
    plan = reader.plan('<speak>Hello <prosody rate="50%">there</prosody></speak>', markup=True, voice="low")
    assert plan.sentences[0].rates[:7] == [1.0] * 4 + [0.5] * 3


# ---- loading


@pytest.fixture
def copied(fastspeech_model: ModelDirectory, tmp_path: Path) -> Path:
    directory = tmp_path / "copied"
    shutil.copytree(fastspeech_model.path, directory)
    return directory


def test_without_a_lexicon_only_phonemes_are_spoken(copied: Path) -> None:
    (copied / "lexicon.txt").unlink()
    reader = PhonemePlanner(copied)
    assert tokens_of(reader, '<speak><phoneme ph="həˈloʊ">hello</phoneme></speak>')
    with pytest.raises(InvalidRequestError, match="reads phonemes, not 'Hello'") as caught:
        reader.plan("Hello", markup=True, voice="low")
    assert "<phoneme" in caught.value.message
    assert "lexicon.txt" in caught.value.message


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("lexicon.txt", "HELLO  hh ah", "line 1"),
        ("lexicon.txt", b"\xff\xfe", "tokenizer"),
        ("vocab.json", "{", "tokenizer"),
        ("vocab.json", '{"AH0": 1}', "<sos/eos>"),
    ],
)
def test_a_damaged_tokenizer_is_refused_at_the_start(file: str, content: Any, says: str, copied: Path) -> None:
    (copied / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelLoadError, match=says):
        PhonemeTokenizer(copied)


# ---- over HTTP


def test_the_service_speaks_it_with_words(
    serving: Any,
    models_dir: Path,
    fastspeech_model: ModelDirectory,
    transcription_model: ModelDirectory,
    played: Any,
    tmp_path: Path,
) -> None:
    text = f'<speak>Hello <phoneme alphabet="x-arpabet" ph="{HELLO}">xyz</phoneme>. There.</speak>'
    body = {"model": NAME, "input": text, "voice": "high", "speed": 0.5}
    with serving(models_dir, tmp_path, synthesis_model=NAME) as service, httpx.Client(timeout=60) as http:
        url = f"{service.url}/v1/audio/speech"
        samples, rate = played(http.post(url, json={**body, "response_format": "wav"}).content)
        events = http.post(url, json={**body, "stream_format": "sse", "timestamp_granularities": ["word"]}).text
        refused = http.post(url, json={**body, "input": "Unheard of."})
    assert rate == 22_050
    assert np.abs(samples).max() > 0
    found = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    words = [word for event in found if event["type"] == "speech.audio.words" for word in event["words"]]
    assert [word["word"] for word in words] == ["Hello", "xyz", "There"]
    assert words[-1]["end"] <= samples.size / rate
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unknown_pronunciation"
