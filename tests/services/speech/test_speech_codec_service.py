"""A codec language model behind the service: every format, events, voices, seeds, clear refusals."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tessera.hub.cards import read_card
from tessera.hub.store import ModelDirectory
from tessera.speech.codec.csm import load_codec_language_model
from tessera.speech.codec.queue import CodecSpeechQueue
from tessera.tokenizer.spoken_turns import SpokenTurns
from tessera.wire.engine import Audio, Synthesize, Utterance

CODEC = "tiny-random-csm"
TEXT = "A short sentence."
MOST_S = 2


@pytest.fixture(scope="module")
def speaking(
    serving: Any,
    models_dir: Any,
    codec_model: ModelDirectory,
    transcription_model: ModelDirectory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    data = tmp_path_factory.mktemp("codec")
    with serving(models_dir, data, synthesis_model=CODEC, max_speech_seconds=MOST_S, max_streams=2) as running:
        yield running


@pytest.fixture
def http(speaking: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaking.url, timeout=120) as client:
        yield client


def body(**fields: Any) -> dict[str, Any]:
    return {"model": CODEC, "input": TEXT, "response_format": "wav", "seed": 1, **fields}


def spoken(codec_model: ModelDirectory, speaker: int, seed: int) -> np.ndarray[Any, Any]:
    """What the engine makes of `TEXT` in this process; `test_codec_model.py` compares that with Transformers."""
    torch.set_num_threads(1)
    directory = codec_model.path
    model = load_codec_language_model(
        directory, read_card(directory), device=torch.device("cpu"), kv_cache_bytes=1 << 20, max_streams=1
    )
    queue = CodecSpeechQueue(model, max_waiting=1, max_seconds=MOST_S)
    sentence = Utterance(token_ids=SpokenTurns(directory).encode(TEXT, speaker))
    queue.submit(Synthesize(request_id="x", sentences=[sentence], voices={speaker: 1.0}, seed=seed))
    parts = []
    while len(queue):
        for answer in queue.step():
            assert isinstance(answer, Audio)
            parts.append(np.frombuffer(answer.samples.data, "<f4"))
    return np.concatenate(parts)


def test_the_file_is_what_the_model_says(http: httpx.Client, codec_model: ModelDirectory, played: Any) -> None:
    answer = http.post("/v1/audio/speech", json=body(voice="speaker-3", seed=9))
    samples, rate = played(answer.content)
    assert rate == 24_000
    expected = spoken(codec_model, 3, 9)
    assert samples.size == expected.size
    assert np.abs(samples - expected).max() < 1e-4


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_is_whole(form: str, http: httpx.Client, played: Any) -> None:
    data = http.post("/v1/audio/speech", json=body(response_format=form)).content
    if form == "pcm":
        seconds = len(data) / 48_000
    else:
        samples, rate = played(data)
        seconds = samples.size / rate
    assert seconds == pytest.approx(MOST_S, abs=0.15 if form in {"mp3", "aac"} else 0.002)


def test_audio_leaves_while_it_is_made_and_events_carry_the_same(http: httpx.Client) -> None:
    whole = http.post("/v1/audio/speech", json=body(response_format="pcm")).content
    answer = http.post("/v1/audio/speech", json=body(response_format="pcm", stream_format="sse"))
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    deltas = [base64.b64decode(event["audio"]) for event in events[:-1]]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert b"".join(deltas) == whole
    assert len(deltas) >= 4
    assert len(deltas[0]) <= 2 * 2 * 1920, "the first sound is two frames"
    usage = events[-1]["usage"]
    assert usage["output_tokens"] == MOST_S * 12.5
    assert usage["input_tokens"] == len(TEXT) + len("[0]") + 2


def test_more_texts_than_streams_are_all_spoken_and_seeds_decide(http: httpx.Client) -> None:
    def ask(seed: int) -> bytes:
        return http.post("/v1/audio/speech", json=body(response_format="pcm", seed=seed)).content

    alone = {seed: ask(seed) for seed in (1, 2)}
    assert alone[1] != alone[2]
    with ThreadPoolExecutor(5) as pool:
        made = list(pool.map(ask, [1, 2, 1, 2, 1]))
    for seed, data in zip([1, 2, 1, 2, 1], made, strict=True):
        difference = np.frombuffer(data, "<i2").astype(int) - np.frombuffer(alone[seed], "<i2")
        assert np.abs(difference).max() <= 1, "rounding at most"


def test_voices_are_speakers_and_ssml_breaks_are_silence(http: httpx.Client, played: Any) -> None:
    models = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    card = models[CODEC]["card"]
    assert card["voices"] == [f"speaker-{number}" for number in range(10)]
    assert (card["sample_rate"], card["context_length"], card["tasks"]) == (24_000, 512, ["speech"])
    assert card["notice"].startswith("random weights")
    sounds = {
        name: http.post("/v1/audio/speech", json=body(voice=name)).content for name in ("alloy", "ash", "speaker-1")
    }
    assert sounds["ash"] == sounds["speaker-1"] != sounds["alloy"]
    paused = http.post("/v1/audio/speech", json=body(input=f'<speak><break time="1s"/>{TEXT}</speak>'))
    samples, _ = played(paused.content)
    assert samples.size == 24_000 * (1 + MOST_S)
    assert not samples[:24_000].any()


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"voice": "nobody"}, "voice", "speaker-0"),
        ({"voice": "speaker-0+speaker-1"}, "voice", "mixtures"),
        ({"speed": 1.5}, "speed", "own pace"),
        ({"timestamp_granularities": ["word"], "stream_format": "sse"}, "timestamp_granularities", "when it says"),
        ({"input": '<speak><prosody rate="slow">x</prosody></speak>'}, "input", "own pace"),
        ({"input": "…!"}, "input", "nothing that can be spoken"),
        ({"input": "x" * 240}, "input", "512 positions"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_field(
    fields: dict[str, Any], param: str, says: str, http: httpx.Client
) -> None:
    answer = http.post("/v1/audio/speech", json=body(**fields))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_control_tokens_that_a_text_spells_out_are_characters(http: httpx.Client) -> None:
    plain = http.post("/v1/audio/speech", json=body(input="<|end_of_text|>", stream_format="sse"))
    usage = json.loads(plain.text.strip().splitlines()[-1][6:])["usage"]
    assert usage["input_tokens"] == len("[0]<|end_of_text|>") + 2
