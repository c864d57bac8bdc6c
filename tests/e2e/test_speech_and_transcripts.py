"""Speech in every format, and transcripts of it, through the gateway by OpenAI's own SDK."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile
from tests.waiting import until

from tessera_speech.starter.espeak import EspeakTeacher
from tessera_speech.starter.transcription import sentences, voices

SPEECH = "english-voices"
TRANSCRIPTION = "english-transcription"
SENTENCE = "Every large picture is made of small stones. Each of them is a tile."
CODECS = {"mp3": "mp3float", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le"}
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
PCM_RATE = 24_000


def speak(suite: Any, form: str, text: str = SENTENCE, **more: Any) -> tuple[bytes, str]:
    with suite.sdk().audio.speech.with_streaming_response.create(
        model=SPEECH, voice="alloy", input=text, response_format=form, extra_body={"seed": 1, **more}
    ) as response:
        return response.read(), response.headers["content-type"].partition(";")[0]


def decoded(data: bytes) -> tuple[str, float]:
    """Codec and seconds of a file, all of it decoded."""
    with av.open(io.BytesIO(data)) as container:
        (stream,) = container.streams.audio
        samples = sum(frame.samples for frame in container.decode(stream))
        return stream.codec_context.name, samples / stream.rate


@pytest.fixture(scope="module")
def spoken(suite: Any) -> bytes:
    """A spoken sentence as WAV."""
    return speak(suite, "wav")[0]


@pytest.mark.parametrize("response_format", ["verbose_json", "diarized_json", "srt"])
def test_a_recording_as_a_job_says_what_who_waits_is_told(suite: Any, spoken: bytes, response_format: str) -> None:
    route = f"{suite.base_url}/v1/audio/transcriptions"
    asked = {"model": TRANSCRIPTION, "response_format": response_format}
    file = {"file": ("speech.wav", spoken)}
    waited = httpx.post(route, data=asked, files=file, timeout=60)
    job = httpx.post(route, data={**asked, "background": "true"}, files=file, timeout=60)
    assert (waited.status_code, job.status_code) == (200, 202)
    found = job.json()

    def ended() -> Any:
        job = httpx.get(f"{route}/{found['id']}").json()
        return None if job["status"] in ("queued", "in_progress") else job

    found = until(ended, 120, what="the transcription job", every_s=0.1)
    assert found["status"] == "completed"
    assert 0 < found["seconds_heard"] == found["seconds"]
    content = httpx.get(f"{route}/{found['id']}/content")
    assert content.headers["content-type"] == waited.headers["content-type"]
    # To the digits that do not depend on what else the engine transcribed in the same steps.
    ours, theirs = (re.sub(r'("avg_logprob":-?\d\.\d\d)\d+', r"\1", each.text) for each in (content, waited))
    assert ours == theirs


@pytest.mark.parametrize("form", sorted(TYPES))
def test_each_format_decodes_to_the_same_length(suite: Any, spoken: bytes, form: str) -> None:
    data, content_type = speak(suite, form)
    _, expected = decoded(spoken)
    if form == "pcm":
        seconds = len(data) / 2 / PCM_RATE
    else:
        codec, seconds = decoded(data)
        assert codec == CODECS[form]
    assert content_type == TYPES[form]
    assert expected > 0.5
    # mp3, aac and opus have whole frames, with some of them before the sound and after it.
    assert seconds == pytest.approx(expected, abs=0.15)


def test_the_same_seed_makes_the_same_sound_and_speed_shortens_it(suite: Any, spoken: bytes) -> None:
    again, _ = speak(suite, "wav")
    assert again == spoken
    faster, _ = speak(suite, "wav", speed=2.0)
    assert decoded(faster)[1] < 0.75 * decoded(spoken)[1]


def test_speech_as_events_is_the_same_file(suite: Any, spoken: bytes) -> None:
    with suite.sdk().audio.speech.with_streaming_response.create(
        model=SPEECH,
        voice="alloy",
        input=SENTENCE,
        response_format="wav",
        stream_format="sse",
        extra_body={"seed": 1},
    ) as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data")]
    assert events[-1]["type"] == "speech.audio.done"
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == spoken


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
def test_what_was_spoken_can_be_transcribed_from_any_format(suite: Any, form: str) -> None:
    data, _ = speak(suite, form)
    answer = suite.sdk().audio.transcriptions.create(model=TRANSCRIPTION, file=(f"speech.{form}", data))
    assert isinstance(answer.text, str)
    assert answer.usage.seconds == pytest.approx(decoded(data)[1], abs=0.1)


def test_words_that_were_spoken_are_written_down(suite: Any) -> None:
    random = np.random.default_rng(5)
    teacher, right, words = EspeakTeacher(), 0, 0
    for _ in range(5):
        said = sentences.held_out(random)
        sound = voices.say(teacher, said, voices.held_out_manner(random))
        file = io.BytesIO()
        soundfile.write(file, sound.samples, voices.RATE, format="FLAC")
        transcript = (
            suite.sdk().audio.transcriptions.create(model=TRANSCRIPTION, file=("said.flac", file.getvalue())).text
        )
        there = transcript.lower().replace(".", "").split()
        words += len(said.split())
        right += sum(word.strip(".,").lower() in there for word in said.split())
    assert right / words > 0.8, f"{right} of {words} words"


def test_a_transcript_has_the_shape_that_was_asked_for(suite: Any, spoken: bytes) -> None:
    client = suite.sdk()
    upload = ("speech.wav", spoken)
    plain = client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, response_format="json").text
    assert client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, response_format="text") == plain
    verbose = client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, response_format="verbose_json")
    assert verbose.duration == pytest.approx(decoded(spoken)[1], abs=0.05)
    assert all(0 <= segment.start <= segment.end <= verbose.duration + 0.1 for segment in verbose.segments)
    subtitles = client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, response_format="vtt")
    assert subtitles.startswith("WEBVTT")
    rows = client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, response_format="srt")
    assert rows.strip() == "" or re.match(r"1\n\d\d:\d\d:\d\d,\d{3} --> ", rows)


def test_a_transcript_streams_what_it_says_as_a_whole(suite: Any, spoken: bytes) -> None:
    client = suite.sdk()
    upload = ("speech.wav", spoken)
    whole = client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload).text
    events = list(client.audio.transcriptions.create(model=TRANSCRIPTION, file=upload, stream=True))
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole
    assert "".join(event.delta for event in events[:-1]) == whole


def test_the_sound_of_a_film_can_be_transcribed(suite: Any, tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    with av.open(str(film), "w") as container:
        picture = container.add_stream("libx264", rate=8)
        picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
        sound = container.add_stream("aac", rate=16_000)
        for _ in range(8):
            container.mux(picture.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux(sound.encode(frame))
        container.mux(picture.encode())
        container.mux(sound.encode())
    with film.open("rb") as file:
        answer = suite.sdk().audio.transcriptions.create(model=TRANSCRIPTION, file=file)
    assert answer.usage.seconds == pytest.approx(1.0, abs=0.15)
