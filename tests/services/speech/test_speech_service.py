"""The service as its clients see it: a real server and engine, the official SDK, faults made for real."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from tests.waiting import until
from transformers import VitsModel, VitsTokenizer
from websockets.sync.client import ClientConnection, connect

from tessera.hub.store import ModelDirectory

SPEECH = "tiny-random-speech"
WAIT_S = 30.0
TRANSCRIPTION = "tiny-random-transcription"
TEXT = "The first sentence is spoken at once. The second one follows while you listen! And here is the third."
LONG = "This sentence is one of very many in a row. " * 90


@pytest.fixture
def sdk(service: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(service: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


def body(**fields: Any) -> dict[str, Any]:
    return {"model": SPEECH, "input": TEXT, "voice": "first", "response_format": "wav", "seed": 1, **fields}


def form(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"files": {"file": ("sound.bin", data)}, "data": {"model": TRANSCRIPTION, **fields}}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    return answer.json()["error"]


# ---- what is served


def test_both_models_are_listed_with_card_notice_and_device(sdk: openai.OpenAI) -> None:
    models = {model.id: model for model in sdk.models.list()}
    assert set(models) == {SPEECH, TRANSCRIPTION}
    for model in models.values():
        extra = model.model_extra or {}
        assert extra["card"]["notice"] == "random weights: the output is noise, only the way there is real"
        assert extra["device"].startswith("cpu")
    assert (sdk.models.retrieve(SPEECH).model_extra or {})["card"]["voices"] == ["first", "second"]


def test_the_http_process_loads_no_torch(service: Any, sdk: openai.OpenAI, recording: Any, melody: Any) -> None:
    sdk.audio.speech.create(model=SPEECH, voice="alloy", input="Warm.")
    sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=("a.wav", recording("wav", melody(1.0))))
    assert "libtorch" not in Path(f"/proc/{service.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{service.engine_pid()}/maps").read_text()


def test_docs_name_the_routes_and_their_fields(http: httpx.Client) -> None:
    paths = http.get("/docs/openapi.json").json()["paths"]
    assert {"/v1/audio/speech", "/v1/audio/transcriptions"} <= set(paths)


# ---- speech


CONTENT_TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "pcm": "audio/pcm; rate=24000; channels=1",
}


@pytest.mark.parametrize("text", [TEXT, "One sentence."])
def test_every_format_is_whole_and_as_long_as_the_others(
    text: str, http: httpx.Client, sdk: openai.OpenAI, played: Any
) -> None:
    seconds = {}
    for form_name, content_type in CONTENT_TYPES.items():
        answer = sdk.audio.speech.create(
            model=SPEECH, voice="alloy", input=text, response_format=form_name, extra_body={"seed": 3}
        )
        assert answer.response.headers["content-type"] == content_type
        if form_name == "pcm":
            seconds["pcm"] = len(answer.content) / 2 / 24_000
        else:
            samples, rate = played(answer.content)
            assert rate == (48_000 if form_name == "opus" else 16_000)
            seconds[form_name] = samples.size / rate
    assert seconds["pcm"] > 0.3
    for form_name, length in seconds.items():
        assert length == pytest.approx(seconds["pcm"], abs=0.15 if form_name in {"mp3", "aac"} else 0.002), form_name


def test_speech_is_that_of_transformers_sentence_by_sentence(
    http: httpx.Client, synthesis_model: ModelDirectory, played: Any
) -> None:
    samples, rate = played(http.post("/v1/audio/speech", json=body(seed=11, voice="second", speed=1.25)).content)
    torch.set_num_threads(1)
    model = VitsModel.from_pretrained(synthesis_model.path).eval()
    tokenizer = VitsTokenizer.from_pretrained(synthesis_model.path)
    torch.manual_seed(11)
    sentences = [f"{part}{end}" for part, end in zip(TEXT[:-1].replace("! ", ". ").split(". "), ".!.", strict=True)]
    with torch.no_grad():
        expected = torch.cat(
            [
                model(**tokenizer(sentence, return_tensors="pt"), speaker_id=1, speaking_rate=1.25).waveform[0]
                for sentence in sentences
            ]
        ).numpy()
    assert rate == 16_000
    assert samples.size == expected.size
    assert np.abs(samples - expected).max() < 1e-4


def test_the_sdk_streams_to_a_file(sdk: openai.OpenAI, tmp_path: Path, played: Any) -> None:
    target = tmp_path / "speech.mp3"
    with sdk.audio.speech.with_streaming_response.create(model=SPEECH, voice="nova", input=TEXT) as answer:
        assert answer.headers["content-type"] == "audio/mpeg"
        answer.stream_to_file(target)
    assert played(target.read_bytes())[0].size > 16_000


def test_audio_leaves_sentence_by_sentence(service: Any) -> None:
    with httpx.stream("POST", f"{service.url}/v1/audio/speech", json=body(input=LONG[:1800]), timeout=60) as answer:
        pieces = [len(piece) for piece in answer.iter_raw()]
    assert len(pieces) >= 20
    assert pieces[0] < sum(pieces) / 10


def test_the_first_audio_of_one_long_sentence_is_a_small_part_of_it(service: Any) -> None:
    text = "one sentence without any end that goes on and on and on while you listen to it for ten seconds" * 2
    asked = body(input=text, response_format="pcm")
    with httpx.stream("POST", f"{service.url}/v1/audio/speech", json=asked, timeout=60) as answer:
        pieces = [len(piece) for piece in answer.iter_raw()]
    assert sum(pieces) / 48_000 > 10
    assert pieces[0] < sum(pieces) / 10


def test_events_carry_the_same_file(http: httpx.Client, synthesis_model: ModelDirectory) -> None:
    whole = http.post("/v1/audio/speech", json=body())
    answer = http.post("/v1/audio/speech", json=body(stream_format="sse"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert len(events) > 3
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == whole.content
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    whole_text = VitsTokenizer.from_pretrained(synthesis_model.path)(TEXT).input_ids
    assert usage["input_tokens"] == len(whole_text) - 2, "no space and its blanks between sentences, but both ends"
    assert usage["output_tokens"] * 64 == (len(whole.content) - 44) / 2, "frames of 64 samples"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_words_come_as_events_before_their_audio(http: httpx.Client) -> None:
    asked = body(stream_format="sse", timestamp_granularities=["word"], response_format="pcm")
    answer = http.post("/v1/audio/speech", json=asked)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    words = [word for event in events if event["type"] == "speech.audio.words" for word in event["words"]]
    assert [word["word"] for word in words] == TEXT.replace(".", "").replace("!", "").split()
    assert all(TEXT[word["offset"] :].startswith(word["word"]) for word in words)
    played_s, last = 0.0, 0.0
    for event in events[:-1]:
        if event["type"] == "speech.audio.words":
            assert event["words"][0]["start"] >= played_s - 0.01, "a sentence's words come when its audio begins"
            for word in event["words"]:
                assert last <= word["start"] < word["end"]
                last = word["end"]
        else:
            played_s += len(base64.b64decode(event["audio"])) / 48_000
    assert last <= played_s


def test_ssml_is_followed(http: httpx.Client, played: Any) -> None:
    def seconds(text: str) -> float:
        samples, rate = played(http.post("/v1/audio/speech", json=body(input=text, seed=7)).content)
        return samples.size / rate

    plain = seconds("<speak>Here is one sentence.</speak>")
    assert seconds('<speak>Here is one sentence.<break time="1500ms"/></speak>') == pytest.approx(plain + 1.5, abs=0.01)
    slow = seconds('<speak><prosody rate="50%">Here is one sentence.</prosody></speak>')
    assert slow == pytest.approx(2 * plain, rel=0.1)


def test_voices_are_mixed(http: httpx.Client) -> None:
    sounds = {
        name: http.post("/v1/audio/speech", json=body(voice=name)) for name in ("first", "second", "first+second")
    }
    assert {answer.status_code for answer in sounds.values()} == {200}
    assert len({answer.content for answer in sounds.values()}) == 3
    even = http.post("/v1/audio/speech", json=body(voice="second(2)+first(2)"))
    assert even.content == sounds["first+second"].content


def test_a_seed_decides_the_samples(http: httpx.Client) -> None:
    same = [http.post("/v1/audio/speech", json=body()).content for _ in range(2)]
    other = http.post("/v1/audio/speech", json=body(seed=2)).content
    unseeded = [http.post("/v1/audio/speech", json=body(seed=None)).content for _ in range(2)]
    assert same[0] == same[1] != other
    assert unseeded[0] != unseeded[1]


def test_voice_and_speed_are_honoured(http: httpx.Client) -> None:
    normal = http.post("/v1/audio/speech", json=body()).content
    assert http.post("/v1/audio/speech", json=body(voice="second")).content != normal
    assert http.post("/v1/audio/speech", json=body(voice={"id": "first"})).content == normal
    assert http.post("/v1/audio/speech", json=body(voice="alloy")).content == normal
    fast = http.post("/v1/audio/speech", json=body(speed=2.0)).content
    assert 0.4 < len(fast) / len(normal) < 0.7


@pytest.mark.parametrize(
    ("fields", "status", "param", "says"),
    [
        ({"voice": "nobody"}, 400, "voice", "first, second"),
        ({"voice": "first+nobody"}, 400, "voice", "first, second"),
        ({"input": "<speak>one <b>two</b></speak>"}, 400, "input", "line 1, column 12: `b` is not supported"),
        ({"instructions": "whisper"}, 400, "instructions", "not a parameter"),
        ({"input": ""}, 400, "input", ""),
        ({"input": "漢字"}, 400, "input", "no character that the model can speak"),
        ({"input": "x" * 4097}, 400, "input", "`max_input_characters` is 4096"),
        ({"speed": 9}, 400, "speed", "4.0"),
        ({"response_format": "wma"}, 400, "response_format", "wma"),
        ({"model": "gpt-9"}, 404, "model", "there is no model 'gpt-9'"),
        ({"model": TRANSCRIPTION}, 404, "model", f"'{SPEECH}' can"),
        ({"seed": -1}, 400, "seed", ""),
    ],
)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_what_cannot_be_spoken_is_refused_by_field(
    fields: dict[str, Any], status: int, param: str, says: str, stream_format: str, http: httpx.Client
) -> None:
    answer = http.post("/v1/audio/speech", json=body(**fields, stream_format=stream_format))
    assert answer.status_code == status
    assert error_of(answer)["param"] == param
    assert says in error_of(answer)["message"]


def test_the_longest_text_is_spoken(http: httpx.Client) -> None:
    assert http.post("/v1/audio/speech", json=body(input="y" * 4096, speed=4)).status_code == 200


def test_a_body_that_is_no_json_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/audio/speech", content=b"{nope", headers={"content-type": "application/json"})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")


# ---- transcription


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "opus", "m4a", "webm"])
def test_any_common_recording_is_transcribed(kind: str, sdk: openai.OpenAI, recording: Any, melody: Any) -> None:
    answer = sdk.audio.transcriptions.create(
        model=TRANSCRIPTION, file=(f"a.{kind}", recording(kind, melody(3.0))), language="en"
    )
    assert answer.text
    assert answer.usage is not None
    assert answer.usage.type == "duration"
    assert answer.usage.seconds == pytest.approx(3.0, abs=0.2)


def test_a_transcript_is_that_of_transformers(
    sdk: openai.OpenAI, transcription_model: ModelDirectory, recording: Any, melody: Any
) -> None:
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

    torch.set_num_threads(1)
    samples = melody(6.0)
    directory = transcription_model.path
    model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    model.generation_config.logprob_threshold = None  # its short form fails on it
    extractor = WhisperFeatureExtractor.from_pretrained(directory)
    features = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    tokens = model.generate(features, task="transcribe")
    expected = WhisperTokenizer.from_pretrained(directory).decode(tokens[0], skip_special_tokens=True).strip()
    answer = sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=("a.wav", recording("wav-float", samples)))
    assert answer.text == expected


def test_every_response_format(sdk: openai.OpenAI, recording: Any, melody: Any) -> None:
    def asked(form_name: Any) -> Any:
        file = ("a.wav", recording("wav", melody(40.0)))
        return sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=file, response_format=form_name, language="en")

    text = asked("text")
    assert text == asked("json").text
    verbose = asked("verbose_json")
    assert verbose.language == "en"
    assert verbose.duration == pytest.approx(40.0, abs=0.01)
    assert verbose.text == "".join(segment.text for segment in verbose.segments).strip()
    assert [segment.id for segment in verbose.segments] == list(range(len(verbose.segments)))
    cues = [segment for segment in verbose.segments if segment.text.strip()]
    assert asked("srt").count(" --> ") == len(cues) > 1
    vtt = asked("vtt")
    assert vtt.startswith("WEBVTT\n")
    assert vtt.count(" --> ") == len(cues)


def test_a_stream_is_the_text_in_pieces(sdk: openai.OpenAI, recording: Any, melody: Any) -> None:
    file = ("a.wav", recording("wav", melody(70.0)))
    whole = sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=file, language="en").text
    events = list(sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=file, language="en", stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) > 1
    assert events[-1].type == "transcript.text.done"
    assert "".join(deltas) == events[-1].text == whole


def test_language_prompt_and_temperature_reach_the_model(http: httpx.Client, recording: Any, melody: Any) -> None:
    data = recording("wav", melody(4.0))

    def text(**fields: Any) -> str:
        answer = http.post("/v1/audio/transcriptions", **form(data, **fields))
        assert answer.status_code == 200, answer.text
        return answer.json()["text"]

    plain = text(language="en")
    assert text(language="en") == plain
    assert text(language="de") != plain
    assert text(language="en", prompt="Tessera, mosaic") != plain
    assert len({text(language="en", temperature="1.0") for _ in range(4)}) > 1


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"language": "xx"}, "language", "does not know the language 'xx'"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names", "needs `response_format=diarized_json`"),
        (
            {"known_speaker_names[]": "Ann", "response_format": "diarized_json"},
            "known_speaker_references",
            "as many of both",
        ),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "needs `response_format=verbose_json`"),
        ({"include[]": "logprobs"}, "include", "not supported"),
        ({"temperature": "2"}, "temperature", ""),
        ({"temperature": "hot"}, "temperature", ""),
        ({"stream": "true", "response_format": "srt"}, "stream", "needs the whole transcript"),
        ({"prompt": "a <|endoftext|> b"}, "prompt", "special token"),
        ({"best_of": "3"}, "best_of", "not a parameter"),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused(
    fields: dict[str, str], param: str, says: str, http: httpx.Client, recording: Any, melody: Any
) -> None:
    answer = http.post("/v1/audio/transcriptions", **form(recording("wav", melody(1.0)), **fields))
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert says in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", 400), (b"plain text", 415), (b"\x00" * 4000, 415), (b"ID3\x04" + b"\xff" * 300, 415), (b"OggS", 415)],
    ids=["empty", "text", "zeros", "mp3 header", "ogg header"],
)
def test_a_file_that_is_no_recording_is_refused(data: bytes, status: int, http: httpx.Client) -> None:
    answer = http.post("/v1/audio/transcriptions", **form(data))
    assert answer.status_code == status
    assert error_of(answer)["param"] == "file"


def test_a_request_without_its_file_is_refused(http: httpx.Client) -> None:
    answers = [
        http.post("/v1/audio/transcriptions", json={"model": TRANSCRIPTION}),
        http.post("/v1/audio/transcriptions", files={"sound": ("a.wav", b"x")}, data={"model": TRANSCRIPTION}),
        http.post("/v1/audio/transcriptions", content=b"x", headers={"content-type": "multipart/form-data"}),
        http.post("/v1/audio/transcriptions", content=b"x", headers={"content-type": "audio/wav"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400, 415]
    twice = http.post("/v1/audio/transcriptions", files=[("file", ("a", b"x")), ("file", ("b", b"y"))])
    assert (twice.status_code, error_of(twice)["param"]) == (400, "file")
    assert error_of(answers[0])["param"] == "file"


def test_a_transcript_of_a_model_that_speaks_is_refused(http: httpx.Client, recording: Any, melody: Any) -> None:
    answer = http.post("/v1/audio/transcriptions", **form(recording("wav", melody(1.0)), model=SPEECH))
    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")


def test_a_translation_is_that_of_transformers(
    sdk: openai.OpenAI, transcription_model: ModelDirectory, recording: Any, melody: Any
) -> None:
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

    samples = melody(6.0)
    directory = transcription_model.path
    model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    model.generation_config.logprob_threshold = None
    extractor = WhisperFeatureExtractor.from_pretrained(directory)
    features = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    tokens = model.generate(features, task="translate")
    expected = WhisperTokenizer.from_pretrained(directory).decode(tokens[0], skip_special_tokens=True).strip()
    file = ("a.wav", recording("wav-float", samples))
    assert sdk.audio.translations.create(model=TRANSCRIPTION, file=file).text == expected
    verbose = sdk.audio.translations.create(model=TRANSCRIPTION, file=file, response_format="verbose_json")
    assert (verbose.language, verbose.duration) == ("english", 6.0)
    assert verbose.segments


def test_words_and_measures_are_told_with_their_segments(sdk: openai.OpenAI, recording: Any, melody: Any) -> None:
    answer = sdk.audio.transcriptions.create(
        model=TRANSCRIPTION,
        file=("a.wav", recording("wav", melody(20.0))),
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert answer.words
    assert "".join(word.word for word in answer.words) == answer.text.replace(" ", "")
    assert all(0 <= word.start <= word.end <= 20.0 for word in answer.words)
    for segment in answer.segments or []:
        assert segment.avg_logprob < 0 < segment.compression_ratio
        assert 0 <= segment.no_speech_prob <= 1
        assert (segment.temperature, segment.seek) == (0.0, 0)
        assert all(isinstance(token, int) for token in segment.tokens)


# ---- many at once, clients that leave, engines that die


def test_requests_beside_each_other_have_their_own_results(http: httpx.Client, recording: Any, melody: Any) -> None:
    sounds = [recording("wav", melody(5.0, base=150.0 + 90 * number)) for number in range(4)]

    def spoken(number: int) -> bytes:
        return http.post("/v1/audio/speech", json=body(seed=number, input=f"Number {number}. {TEXT}")).content

    def transcribed(number: int) -> str:
        return http.post("/v1/audio/transcriptions", **form(sounds[number])).json()["text"]

    alone = [spoken(number) for number in range(4)], [transcribed(number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        speeches, transcripts = pool.map(spoken, range(4)), pool.map(transcribed, range(4))
        assert (list(speeches), list(transcripts)) == alone
    assert len(set(alone[1])) > 1


def test_a_listener_that_leaves_stops_the_speech(service: Any) -> None:
    before = service.metric("synthesized_audio_seconds_total")
    with httpx.stream("POST", f"{service.url}/v1/audio/speech", json=body(input=LONG, speed=0.25)) as answer:
        next(answer.iter_raw())
    until(lambda: service.metric("requests_running") + service.metric("requests_waiting") == 0, WAIT_S)
    assert service.metric("synthesized_audio_seconds_total") - before < len(LONG) / 12 * 4 / 2


@pytest.fixture(scope="module")
def ten_minutes(recording: Any, melody: Any) -> bytes:
    sound: bytes = recording("flac", np.tile(melody(10.0), 60))
    return sound


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_client_that_leaves_stops_its_transcription(stream: str, service: Any, ten_minutes: bytes) -> None:
    data = ten_minutes
    before = service.metric("transcribed_audio_seconds_total")
    asked = httpx.Request("POST", f"{service.url}/v1/audio/transcriptions", **form(data, stream=stream))
    asked.read()
    head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
    with socket.create_connection((asked.url.host, asked.url.port or 80)) as connection:
        connection.sendall(f"POST {asked.url.path} HTTP/1.1\r\n{head}\r\n".encode() + asked.content)
        until(lambda: service.metric("requests_running") == 1, WAIT_S)
    until(lambda: service.metric("requests_running") + service.metric("requests_waiting") == 0, WAIT_S)
    assert service.metric("transcribed_audio_seconds_total") - before < 500.0


def test_an_engine_that_dies_ends_what_it_had_begun_with_a_clear_error(service: Any) -> None:
    with httpx.stream(
        "POST", f"{service.url}/v1/audio/speech", json=body(input=LONG, stream_format="sse"), timeout=60
    ) as answer:
        lines = answer.iter_lines()
        assert "speech.audio.delta" in next(lines)
        os.kill(service.engine_pid(), signal.SIGKILL)
        last = [line for line in lines if line.startswith("data: ")][-1]
    error = json.loads(last[6:])["error"]
    assert error["code"] == "engine_died"
    assert "send it again" in error["message"]
    service.wait_ready()


def test_an_engine_that_dies_cuts_a_file_rather_than_end_it(service: Any) -> None:
    with httpx.stream("POST", f"{service.url}/v1/audio/speech", json=body(input=LONG), timeout=60) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        os.kill(service.engine_pid(), signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    service.wait_ready()


def test_a_request_that_was_not_answered_is_run_again_by_the_next_engine(
    service: Any, recording: Any, melody: Any
) -> None:
    expected = httpx.post(f"{service.url}/v1/audio/speech", json=body(), timeout=60).content
    sound = recording("wav", melody(3.0))
    alone = httpx.post(f"{service.url}/v1/audio/transcriptions", **form(sound), timeout=60).json()
    engine = service.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        speech = pool.submit(httpx.post, f"{service.url}/v1/audio/speech", json=body(), timeout=90)
        transcript = pool.submit(httpx.post, f"{service.url}/v1/audio/transcriptions", **form(sound), timeout=90)
        in_flight = "tessera_http_requests_in_flight 3.0"  # those two and the one that asks
        until(lambda: in_flight in httpx.get(f"{service.url}/metrics").text, WAIT_S)
        os.kill(engine, signal.SIGKILL)
        assert speech.result().content == expected
        assert transcript.result().json() == alone
    assert service.engine_pid() != engine


# ---- limits


@pytest.fixture(scope="module")
def strict(
    serving: Any,
    models_dir: Path,
    synthesis_model: ModelDirectory,
    transcription_model: ModelDirectory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    limits = {"max_input_characters": 50, "max_audio_bytes": 100_000, "max_audio_seconds": 2, "max_waiting": 1}
    with serving(models_dir, tmp_path_factory.mktemp("strict"), **limits) as running:
        yield running


def test_limits_are_named_with_their_value(strict: Any, recording: Any, melody: Any) -> None:
    url = f"{strict.url}/v1/audio"
    long_text = httpx.post(f"{url}/speech", json=body(input="x" * 51))
    assert (long_text.status_code, error_of(long_text)["code"]) == (400, "string_above_max_length")
    assert "`max_input_characters` is 50" in error_of(long_text)["message"]
    long_sound = httpx.post(f"{url}/transcriptions", **form(recording("opus", melody(5.0))))
    assert (long_sound.status_code, error_of(long_sound)["code"]) == (400, "audio_too_long")
    assert "`max_audio_seconds`, 2" in error_of(long_sound)["message"]
    large = httpx.post(f"{url}/transcriptions", **form(b"\x00" * 100_001))
    assert large.status_code == 413
    assert "`max_audio_bytes` is 100000" in error_of(large)["message"]
    huge = httpx.post(f"{url}/transcriptions", **form(b"\x00" * 3_000_000))
    assert huge.status_code == 413


def while_the_engine_rests(strict: Any, ask: Any, times: int, answered_before: int = 0) -> list[httpx.Response]:
    """What `times` requests at once are answered that the engine finds together when it wakes.

    It wakes when all have come, and `answered_before` of them have been answered without it.
    """
    engine = strict.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(times) as pool:
            asked = [pool.submit(ask) for _ in range(times)]

            def all_have_come() -> bool:
                metrics = httpx.get(f"{strict.url}/metrics").text
                answered = sum(future.done() for future in asked)
                waiting = f"tessera_http_requests_in_flight {times - answered + 1}.0" in metrics
                return waiting and answered >= answered_before

            until(all_have_come, WAIT_S)
            os.kill(engine, signal.SIGCONT)
            return [future.result() for future in asked]
    finally:
        os.kill(engine, signal.SIGCONT)


def refusals(answers: list[httpx.Response]) -> list[str]:
    refused = [answer for answer in answers if answer.status_code != 200]
    for answer in refused:
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert error_of(answer)["type"] == "rate_limit_error"
    return [error_of(answer)["message"] for answer in refused]


def test_a_full_queue_answers_429_with_retry_after(strict: Any) -> None:
    def ask() -> httpx.Response:
        return httpx.post(f"{strict.url}/v1/audio/speech", json=body(input="Hi there."), timeout=60)

    assert any("already waiting" in message for message in refusals(while_the_engine_rests(strict, ask, 3)))


def test_recordings_that_wait_do_not_fill_the_memory(strict: Any, recording: Any, melody: Any) -> None:
    sound = recording("opus", melody(1.9))

    def ask() -> httpx.Response:
        return httpx.post(f"{strict.url}/v1/audio/transcriptions", **form(sound), timeout=60)

    for _ in range(2):  # what was held is free again
        messages = refusals(while_the_engine_rests(strict, ask, 12, answered_before=4))
        assert sum("s of recordings are already waiting" in message for message in messages) == 4
    assert ask().status_code == 200


def test_an_upload_takes_memory_until_it_is_decoded_and_not_until_it_is_transcribed(
    strict: Any, recording: Any, melody: Any
) -> None:
    sound = recording("opus", melody(1.9))
    engine = strict.engine_pid()

    def ask() -> httpx.Response:
        return httpx.post(f"{strict.url}/v1/audio/transcriptions", **form(sound), timeout=60)

    def are_decoded(count: int) -> bool:
        """Whether so many requests wait beside that of the metrics, and no upload is in memory."""
        metrics = httpx.get(f"{strict.url}/metrics").text
        waits = f"tessera_http_requests_in_flight {count + 1}.0" in metrics
        return waits and "tessera_http_body_memory_bytes 0.0" in metrics

    os.kill(engine, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            asked = []
            for count in range(1, 5):  # one after the other: of many at once, some are refused before they are decoded
                asked.append(pool.submit(ask))
                until(lambda count=count: are_decoded(count), WAIT_S)
            os.kill(engine, signal.SIGCONT)
            assert asked[0].result().status_code == 200
    finally:
        os.kill(engine, signal.SIGCONT)


def test_recordings_of_one_key_leave_room_for_anothers(strict: Any, recording: Any, melody: Any) -> None:
    sound = recording("opus", melody(1.9))
    tenants = iter([*["many"] * 11, "new"])

    def ask() -> httpx.Response:
        headers = {"x-tessera-tenant": next(tenants)}
        return httpx.post(f"{strict.url}/v1/audio/transcriptions", **form(sound), headers=headers, timeout=60)

    answers = while_the_engine_rests(strict, ask, 12, answered_before=3)
    held = {
        answer.request.headers["x-tessera-tenant"]
        for answer in answers
        if answer.status_code == 429 and "s of recordings are already waiting" in error_of(answer)["message"]
    }
    assert held == {"many"}


def test_a_live_session_counts_for_its_key(strict: Any, recording: Any, melody: Any) -> None:
    sound = recording("opus", melody(1.9))
    spoken = base64.b64encode((np.clip(melody(1.9, 24_000), -1, 1) * 32767).astype("<i2").tobytes()).decode()
    manual = {"type": "transcription", "audio": {"input": {"transcription": {}, "turn_detection": None}}}

    def ask() -> httpx.Response:
        headers = {"x-tessera-tenant": "many"}
        return httpx.post(f"{strict.url}/v1/audio/transcriptions", **form(sound), headers=headers, timeout=60)

    def outcome(line: ClientConnection) -> dict[str, Any]:
        kinds = ("completed", "failed")
        while not (event := json.loads(line.recv(WAIT_S)))["type"].endswith(kinds):
            assert event["type"] != "error", event
        return event

    engine, url = strict.engine_pid(), f"{strict.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
    with contextlib.ExitStack() as lines:
        many, new = (
            lines.enter_context(connect(url, additional_headers={"x-tessera-tenant": name})) for name in ("many", "new")
        )
        os.kill(engine, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(9) as pool:
                asked = [pool.submit(ask) for _ in range(9)]
                until(lambda: any(future.done() for future in asked), WAIT_S)  # 8 are held, and one is refused
                for line in (many, new):
                    line.send(json.dumps({"type": "session.update", "session": manual}))
                    line.send(json.dumps({"type": "input_audio_buffer.append", "audio": spoken}))
                    line.send(json.dumps({"type": "input_audio_buffer.commit"}))
                refused = outcome(many)
                os.kill(engine, signal.SIGCONT)
        finally:
            os.kill(engine, signal.SIGCONT)
        assert "s of recordings are already waiting" in refused["error"]["message"]
        assert "s of recordings are already waiting" not in json.dumps(outcome(new))


def test_the_sdk_understands_the_errors(strict: Any) -> None:
    client = openai.OpenAI(base_url=f"{strict.url}/v1", api_key="none", max_retries=0)
    with client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.audio.speech.create(model=SPEECH, voice="alloy", input="x" * 51)
        assert caught.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            client.audio.transcriptions.create(model="whisper-1", file=io.BytesIO(b"RIFF"))
