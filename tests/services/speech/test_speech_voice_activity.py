"""Speech is found where it is; silence, noise and music have none; windows lose and double nothing."""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import StartError
from tessera.wire.audio import VADConfig
from tessera_speech.recordings import voice_activity, windows
from tessera_speech.recordings.decoding import decode
from tessera_speech.recordings.voice_activity import FRAME, RATE, VoiceActivityModel, model_file, speech_spans

SECONDS = 20
TRANSCRIPTION = "tiny-random-transcription"


def person(name: str = "beckett.wav") -> bytes:
    return files("moonshine_voice").joinpath("assets", name).read_bytes()


def silence() -> np.ndarray[Any, Any]:
    return np.zeros(SECONDS * RATE, dtype=np.float32)


def white_noise() -> np.ndarray[Any, Any]:
    return (0.3 * np.random.default_rng(0).standard_normal(SECONDS * RATE)).astype(np.float32)


def pink_noise() -> np.ndarray[Any, Any]:
    spectrum = np.fft.rfft(np.random.default_rng(1).standard_normal(SECONDS * RATE))
    sound = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(spectrum.size))))
    return (0.7 * sound / np.abs(sound).max()).astype(np.float32)


def music() -> np.ndarray[Any, Any]:
    """Plucked chords with harmonics over a beat of noise."""
    time_s = np.arange(SECONDS * RATE) / RATE
    sound = np.zeros_like(time_s)
    beat = np.random.default_rng(2).standard_normal(RATE // 10) * np.exp(-np.arange(RATE // 10) / 300)
    for note in range(2 * SECONDS):
        begin = note * RATE // 2
        since = time_s[begin : begin + 2 * RATE] - time_s[begin]
        root = (220.0, 246.9, 261.6, 196.0)[note // 4 % 4]
        for ratio in (1, 1.26, 1.5, 2):
            for harmonic in (1, 2, 3, 4):
                wave = np.sin(2 * np.pi * root * ratio * harmonic * since) / harmonic
                sound[begin : begin + since.size] += np.exp(-2 * since) * wave
        sound[begin : begin + beat.size] += beat[: sound.size - begin]
    return (0.8 * sound / np.abs(sound).max()).astype(np.float32)


NO_SPEECH = {"silence": silence, "white noise": white_noise, "pink noise": pink_noise, "music": music}


@pytest.fixture(scope="module")
def activity() -> VoiceActivityModel:
    return VoiceActivityModel()


def found(activity: VoiceActivityModel, samples: np.ndarray[Any, Any], **options: Any) -> list[tuple[int, int]]:
    return speech_spans(activity.probabilities(samples), samples.size, VADConfig(**options))


@pytest.mark.parametrize("name", NO_SPEECH)
def test_what_is_no_speech_has_no_spans(name: str, activity: VoiceActivityModel) -> None:
    assert found(activity, NO_SPEECH[name]()) == []


@pytest.mark.parametrize("noise", [silence, pink_noise])
def test_speech_is_found_between_noise(noise: Any, activity: VoiceActivityModel) -> None:
    speech = decode(person(), rate=RATE, max_seconds=60)
    around = 0.02 * noise()
    made = found(activity, np.concatenate([around, speech, around]))
    assert made[0][0] / RATE == pytest.approx(SECONDS, abs=1.5)
    assert made[-1][1] / RATE == pytest.approx(SECONDS + speech.size / RATE, abs=1.5)
    assert sum(end - first for first, end in made) > 0.6 * speech.size


def test_long_recordings_are_read_in_parts_with_the_same_result(
    activity: VoiceActivityModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = decode(person(), rate=RATE, max_seconds=60)
    whole = activity.probabilities(speech)
    assert whole.shape == (-(-speech.size // FRAME),)
    monkeypatch.setattr(voice_activity, "FRAMES_PER_CALL", 7)
    np.testing.assert_allclose(activity.probabilities(speech), whole, atol=1e-5)


def test_a_longer_silence_joins_what_a_shorter_one_parts(activity: VoiceActivityModel) -> None:
    speech = decode(person(), rate=RATE, max_seconds=60)
    parted = found(activity, speech, silence_duration_ms=100, prefix_padding_ms=0)
    joined = found(activity, speech, silence_duration_ms=5000)
    assert len(parted) > len(joined) == 1
    assert all(end <= first for (_, end), (first, _) in pairwise(parted))


def test_without_the_wheel_the_service_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_activity, "MODEL", "not-there.onnx")
    with pytest.raises(StartError, match="pip install silero-vad"):
        model_file()


@given(
    probabilities=st.lists(st.sampled_from([0.0, 0.3, 0.4, 0.6, 1.0]), max_size=80),
    padding=st.integers(0, 500),
    quiet=st.integers(32, 500),
)
@settings(max_examples=200, deadline=None)
def test_spans_are_in_order_apart_and_hold_all_that_is_surely_speech(
    probabilities: list[float], padding: int, quiet: int
) -> None:
    samples = len(probabilities) * FRAME
    detection = VADConfig(prefix_padding_ms=padding, silence_duration_ms=quiet)
    made = speech_spans(np.array(probabilities, dtype=np.float32), samples, detection)
    assert all(0 <= first < end <= samples for first, end in made)
    assert all(end < first for (_, end), (first, _) in pairwise(made))
    for frame in range(len(probabilities) - 3):
        if min(probabilities[frame : frame + 4]) >= 0.5:
            assert any(first <= frame * FRAME and (frame + 4) * FRAME <= end for first, end in made)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 90_000), st.integers(1, 60_000)), max_size=12),
    seed=st.integers(0, 9),
)
@settings(max_examples=100, deadline=None)
def test_windows_cover_every_span_once_and_fit_the_model(lengths: list[tuple[int, int]], seed: int) -> None:
    made: list[tuple[int, int]] = []
    at = 0
    for gap, length in lengths:
        made.append((at + gap, at + gap + length))
        at += gap + length
    samples = np.random.default_rng(seed).standard_normal(at).astype(np.float32)
    packed = windows.pack(made, samples, window_s=1.5)
    assert all(0 < end - first <= 1.5 * RATE for first, end in packed)
    assert all(end <= first for (_, end), (first, _) in pairwise(packed))
    covered = np.zeros(at, dtype=np.int8)
    for first, end in packed:
        covered[first:end] += 1
    for first, end in made:
        assert (covered[first:end] == 1).all()


def test_endless_speech_is_cut_where_it_is_quietest() -> None:
    samples = np.random.default_rng(0).standard_normal(20 * RATE).astype(np.float32)
    samples[int(8.7 * RATE) : int(9.1 * RATE)] *= 0.01
    samples[int(2.0 * RATE) : int(3.0 * RATE)] *= 0.001  # too early: half of the window would be lost
    first, second, third = windows.pack([(0, samples.size)], samples, window_s=10.0)
    assert first[0] == 0
    assert first[1] == second[0]
    assert second[1] == third[0]
    assert first[1] / RATE == pytest.approx(8.9, abs=0.12)


def test_speech_far_apart_is_not_put_into_one_window() -> None:
    samples = np.zeros(30 * RATE, dtype=np.float32)
    near, far = [(0, RATE), (2 * RATE, 3 * RATE)], [(0, RATE), (8 * RATE, 9 * RATE)]
    assert windows.pack(near, samples, window_s=30.0) == [(0, 3 * RATE)]
    assert windows.pack(far, samples, window_s=30.0) == far


# ---- through the service, with a model that writes something whatever the audio is


def asked(service: Any, data: bytes, **fields: str) -> httpx.Response:
    fields = {"model": TRANSCRIPTION, "language": "en", **fields}
    files = {"file": ("a.wav", data)}
    return httpx.post(f"{service.url}/v1/audio/transcriptions", data=fields, files=files, timeout=120)


@pytest.mark.parametrize("name", NO_SPEECH)
def test_what_is_no_speech_has_an_empty_transcript(name: str, vad_service: Any, recording: Any) -> None:
    sound = recording("wav", NO_SPEECH[name]())
    verbose = asked(vad_service, sound, response_format="verbose_json").json()
    assert (verbose["text"], verbose["segments"]) == ("", [])
    assert verbose["duration"] == SECONDS
    assert asked(vad_service, sound, response_format="srt").text == ""
    assert asked(vad_service, sound).json()["text"] == ""


def test_detection_can_be_turned_off_for_one_request(vad_service: Any, recording: Any) -> None:
    assert asked(vad_service, recording("wav", music()), chunking_strategy="none").json()["text"]
    assert asked(vad_service, person(), chunking_strategy="none").json()["text"]


def test_speech_is_transcribed_and_its_times_are_those_of_the_recording(vad_service: Any, recording: Any) -> None:
    speech = decode(person(), rate=RATE, max_seconds=60)
    sound = recording("wav", np.concatenate([silence(), speech]))
    verbose = asked(vad_service, sound, response_format="verbose_json", chunking_strategy="auto").json()
    assert verbose["text"]
    assert all(SECONDS - 1.5 <= segment["start"] <= segment["end"] for segment in verbose["segments"])


@pytest.mark.parametrize(
    "fields",
    [
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.005"},
        {"chunking_strategy": '{"type": "server_vad", "threshold": 0.005}'},
    ],
    ids=["brackets", "json"],
)
def test_detection_obeys_the_requests_own_threshold(fields: dict[str, str], vad_service: Any, recording: Any) -> None:
    assert asked(vad_service, recording("wav", music()), **fields).json()["text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chunking_strategy": "sometimes"}, "chunking_strategy"),
        ({"chunking_strategy": "{nope"}, "chunking_strategy"),
        (
            {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "7"},
            "chunking_strategy.threshold",
        ),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[eagerness]": "1"}, "chunking_strategy.eagerness"),
    ],
)
def test_a_strategy_that_is_none_is_refused(fields: dict[str, str], param: str, vad_service: Any) -> None:
    answer = asked(vad_service, person(), **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
