"""Long recordings as jobs, with real processes, a real Redis and the official SDK: what they survive, what they say.

That their text is what who waits is told: `tests/e2e/test_speech_and_transcripts.py`, with a real model.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import openai
import pytest
from tests.services.speech.job_stage import MODEL, RATE, ROUTE, Stage, recording, staged

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIPS = 14


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


@pytest.fixture(scope="module")
def talk() -> bytes:
    return recording(CLIPS)


@pytest.fixture(scope="module")
def short() -> bytes:
    return recording(2)


@pytest.fixture(scope="module")
def undisturbed(stage: Stage, talk: bytes) -> dict[str, bytes]:
    """The talk's transcript in every format, of a job to which nothing happened."""
    stage.worker()
    before = len(stage.pieces())
    job = stage.create(talk, response_format="verbose_json")
    assert stage.ended(job["id"])["status"] == "completed"
    assert len(stage.pieces()[before:]) == len(set(stage.pieces()[before:])) >= CLIPS, "a piece for each clip"
    return {name: stage.content(job["id"], response_format=name) for name in stage.get(job["id"])["formats"]}


def test_a_worker_that_is_killed_goes_on_from_the_last_piece_and_the_text_is_the_same(
    stage: Stage, talk: bytes, undisturbed: dict[str, bytes]
) -> None:
    worker = stage.worker()
    before = len(stage.pieces())
    job = stage.create(talk, response_format="verbose_json")
    stage.transcribed_seconds(job["id"])
    worker.kill()
    worker.wait()
    killed_at = stage.get(job["id"])
    assert 0 < killed_at["seconds_heard"] < killed_at["seconds"], "it was killed in the middle"
    stage.work()
    done = stage.ended(job["id"])

    assert (done["status"], done["progress"], done["seconds_heard"]) == ("completed", 100, done["seconds"])
    assert set(done["formats"]) == {"json", "text", "srt", "vtt", "verbose_json"}
    assert {name: stage.content(job["id"], response_format=name) for name in done["formats"]} == undisturbed
    pieces = stage.pieces()[before:]
    assert set(pieces) == set(stage.pieces()[:before]), "all of it"
    assert len(pieces) <= len(set(pieces)) + 1, "at most one piece was transcribed again"
    events = stage.http.get(f"{ROUTE}/{job['id']}/events").text
    names = [line.removeprefix("event: transcription.") for line in events.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["queued", "in_progress"]
    assert names.count("in_progress") == 2, "two attempts"
    assert names[-1] == "completed"
    shown = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    transcribed = [each["seconds_heard"] for each, name in zip(shown, names, strict=True) if name == "progress"]
    assert any(0 < seconds < done["seconds"] for seconds in transcribed), "progress counts transcribed seconds"
    assert shown[-1]["seconds_heard"] == shown[-1]["seconds"] == done["seconds"]


def test_the_official_sdk_starts_a_job_and_reads_its_text(stage: Stage, short: bytes) -> None:
    stage.worker()
    made: Any = stage.sdk.audio.transcriptions.create(
        model=MODEL, file=("talk.flac", short), extra_body={"background": True}
    )
    assert (made.status, made.object) == ("queued", "audio.transcription")
    stage.ended(made.id)
    text = stage.sdk.get(f"/audio/transcriptions/{made.id}/content", cast_to=openai.types.audio.Transcription)
    assert text.text == json.loads(stage.content(made.id, response_format="verbose_json"))["text"] != ""
    assert text.usage is not None
    assert text.usage.type == "duration"
    page: Any = stage.sdk.get("/audio/transcriptions", cast_to=object, options={"params": {"limit": 1}})
    assert [each["id"] for each in page["data"]] == [made.id]
    deleted: Any = stage.sdk.delete(f"/audio/transcriptions/{made.id}", cast_to=object)
    assert deleted == {"id": made.id, "object": "audio.transcription.deleted", "deleted": True}
    assert not (stage.data / "artifacts" / made.id).exists(), "its recording and its text are gone"
    with pytest.raises(openai.NotFoundError):
        stage.sdk.get(f"/audio/transcriptions/{made.id}", cast_to=object)


def test_a_cancel_is_obeyed_in_every_state(stage: Stage, talk: bytes, short: bytes) -> None:
    def cancel(job_id: str) -> int:
        return stage.http.post(f"{ROUTE}/{job_id}/cancel").status_code

    stage.clear()
    queued = stage.create(talk)["id"]
    assert cancel(queued) == 200
    assert stage.get(queued)["status"] == "cancelled", "at once: nobody has it"

    deleted = stage.create(talk)["id"]
    assert stage.http.delete(f"{ROUTE}/{deleted}").status_code == 200
    assert stage.http.get(f"{ROUTE}/{deleted}").status_code == 404

    worker = stage.work()
    running = stage.create(talk)["id"]
    stage.transcribed_seconds(running)
    assert cancel(running) == 200
    ended = stage.ended(running)
    assert (ended["status"], ended["error"]["code"]) == ("cancelled", "cancelled")
    stage.until(lambda: not (stage.data / "artifacts" / running).exists(), "its files to go")

    purged = stage.create(talk)["id"]
    stage.transcribed_seconds(purged)
    assert stage.http.delete(f"{ROUTE}/{purged}").status_code == 200
    stage.until(lambda: not (stage.data / "artifacts" / purged).exists(), "its files to go")

    orphan = stage.create(talk)["id"]
    stage.transcribed_seconds(orphan)
    worker.kill()
    worker.wait()
    assert cancel(orphan) == 200
    worker = stage.work()
    assert stage.ended(orphan)["status"] == "cancelled", "nobody began it again"

    given_back = stage.create(talk)["id"]
    stage.transcribed_seconds(given_back)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert stage.get(given_back)["status"] == "queued"
    assert cancel(given_back) == 200
    assert stage.get(given_back)["status"] == "cancelled"

    stage.work()
    done = stage.create(short)["id"]
    stage.ended(done)
    assert [cancel(job_id) for job_id in (done, running, queued)] == [409, 409, 409]


def test_a_service_that_is_killed_with_a_piece_in_work_costs_time_and_not_the_job(
    stage: Stage, talk: bytes, undisturbed: dict[str, bytes]
) -> None:
    stage.worker()
    job = stage.create(talk, response_format="verbose_json")["id"]
    stage.transcribed_seconds(job)
    stage.processes[0].kill()
    stage.processes[0].wait()
    stage.start_transcriber()
    stage.processes[0] = stage.processes.pop()
    assert stage.ended(job)["status"] == "completed"
    assert stage.content(job) == undisturbed["verbose_json"]
    names = [line for line in stage.http.get(f"{ROUTE}/{job}/events").text.splitlines() if "in_progress" in line]
    assert len([line for line in names if line.startswith("event: ")]) == 1, "it cost no attempt"


def test_a_repeated_request_is_one_job(stage: Stage, short: bytes) -> None:
    def post(data: bytes) -> Any:
        return stage.http.post(
            ROUTE,
            data={"model": MODEL, "background": "true"},
            files={"file": ("talk.flac", data)},
            headers={"idempotency-key": "once"},
        )

    first, again = post(short), post(short)
    assert (first.json()["id"], again.headers["idempotent-replayed"]) == (again.json()["id"], "true")
    assert post(short + b"x").status_code == 422
    stage.http.delete(f"{ROUTE}/{first.json()['id']}")


def wav_of(seconds: float) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        silence = np.zeros((1, int(seconds * RATE)), dtype=np.int16)
        frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
        frame.sample_rate = RATE
        container.mux(stream.encode(frame))
    return file.getvalue()


def test_a_recording_too_large_to_wait_for_goes_to_the_disk_as_it_comes(stage: Stage) -> None:
    """The gateway's limit for who waits is 4 MiB here; five minutes of silence have nine."""
    large = wav_of(300)
    assert len(large) > 4 * 1024 * 1024
    refused = stage.http.post(ROUTE, data={"model": MODEL}, files={"file": ("a.wav", large)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "background")
    stage.worker()
    job = stage.create(large)
    stored = stage.data / "artifacts" / job["id"] / "input"
    assert stored.read_bytes() == large
    done = stage.ended(job["id"])
    assert (done["status"], done["seconds"], done["seconds_heard"]) == ("completed", 300.0, 300.0)
    assert json.loads(stage.content(job["id"]))["text"] == ""
    assert list((stage.data / "artifacts" / "_incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "nobody"}, 404, "model"),
        ({"stream": "true"}, 400, "stream"),
        ({"response_format": "docx"}, 400, "response_format"),
        ({"webhook_url": "https://example.com"}, 400, "webhook_url"),
        ({"deadline_s": "0"}, 400, "deadline_s"),
    ],
)
def test_what_is_wrong_is_said_before_there_is_a_job(
    stage: Stage, short: bytes, fields: dict[str, str], status: int, param: str
) -> None:
    before = stage.http.get(ROUTE).json()["data"]
    body = {"model": MODEL, "background": "true", **fields}
    answer = stage.http.post(ROUTE, data=body, files={"file": ("talk.flac", short)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert stage.http.get(ROUTE).json()["data"] == before


@pytest.mark.parametrize(("data", "code"), [(b"no sound", "unsupported_media"), (b"", None)])
def test_what_is_no_recording_fails_clearly(stage: Stage, data: bytes, code: str | None) -> None:
    stage.worker()
    answer = stage.http.post(ROUTE, data={"model": MODEL, "background": "true"}, files={"file": ("a", data)})
    if code is None:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
        return
    ended = stage.ended(answer.json()["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", code)
    assert "known formats" in ended["error"]["message"]
    content = stage.http.get(f"{ROUTE}/{ended['id']}/content")
    assert (content.status_code, content.json()["error"]["code"]) == (409, "conflict")


def test_a_recording_longer_than_may_be_fails_and_a_truncated_checkpoint_costs_time_alone(
    stage: Stage, talk: bytes, undisturbed: dict[str, bytes]
) -> None:
    stage.clear()
    worker = stage.work(max_job_seconds=10)
    ended = stage.ended(stage.create(talk)["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "audio_too_long")
    assert "max_job_seconds" in ended["error"]["message"]
    worker.kill()
    worker.wait()

    worker = stage.work()
    job = stage.create(talk, response_format="text")["id"]
    stage.transcribed_seconds(job)
    worker.kill()
    worker.wait()
    (checkpoint,) = (stage.data / "artifacts" / job).glob("*checkpoint*")
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    stage.work()
    assert stage.ended(job)["status"] == "completed"
    assert stage.content(job) == undisturbed["text"]
    assert not list((stage.data / "artifacts" / job).glob("*checkpoint*")), "they go when the job has ended"
