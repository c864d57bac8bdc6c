"""`kill -9` of any process of the suite: clients are told or never notice, jobs complete, nobody has to help."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import openai
import pytest

from tessera.settings.video import VideoSettings

TEXT = "smollm2-135m-instruct"
VIDEO = "shapes-video"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of Japan?"}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a very long story."}]
LONG = {"prompt": "a long film", "model": VIDEO, "seconds": "20", "size": "96x64"}
LONG_STEPS = 40
LONG_FRAMES = 81
CHECKPOINT_STEPS = VideoSettings().checkpoint_steps
Wait = Callable[..., Any]


@pytest.fixture(autouse=True)
def _without_deprecation_warnings() -> Iterator[None]:
    """The SDK's, about OpenAI's own video service."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture
def client(breakable_suite: Any, keys: tuple[str, str]) -> openai.OpenAI:
    """As applications have it: it tries again what may be tried again, as long as `Retry-After` asks it to.

    Enough times for four services that load their models at once on busy cores.
    """
    return breakable_suite.sdk(keys[0], retries=40)


@pytest.fixture
def strict(breakable_suite: Any, keys: tuple[str, str]) -> openai.OpenAI:
    """It tries nothing again."""
    return breakable_suite.sdk(keys[0])


@pytest.fixture
def kill(breakable_suite: Any, wait: Wait) -> Callable[[str], int]:
    """SIGKILL the one process with these words in its command line."""

    def one(words: str) -> int:
        (pid,) = wait(lambda: breakable_suite.pids(words), words)
        os.kill(pid, signal.SIGKILL)
        return pid

    return one


def ready(suite: Any) -> bool:
    try:
        return httpx.get(f"{suite.base_url}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(autouse=True)
def _whole(breakable_suite: Any, wait: Wait) -> Iterator[None]:
    """Each test begins with a suite that has mended itself, and leaves one that does."""
    wait(lambda: ready(breakable_suite), "the suite to be ready")
    yield
    wait(lambda: ready(breakable_suite), "the suite to be ready again")


def played(client: openai.OpenAI, video_id: str) -> int:
    """Frames of a finished video, all of them decoded."""
    data = client.videos.download_content(video_id).read()
    with av.open(io.BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


def begun(client: openai.OpenAI, wait: Wait) -> str:
    """A long job that a worker has taken some steps of."""
    video = client.videos.create(**LONG, extra_body={"steps": LONG_STEPS, "seed": 5})
    wait(lambda: client.videos.retrieve(video.id).progress >= 5, "the first steps")
    return video.id


def test_an_engine_killed_within_a_stream_is_told_and_the_next_request_works(
    breakable_suite: Any, strict: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    stream = strict.chat.completions.create(
        model=TEXT, messages=STORY, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    said = [next(stream) for _ in range(4)]
    killed = kill("tessera_text.worker")
    with pytest.raises(openai.APIError) as told:
        said.extend(stream)
    assert told.value.code == "engine_died"
    assert "send it again" in told.value.message
    answer = strict.chat.completions.create(model=TEXT, messages=QUESTION, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content == "The capital of Japan is Tokyo."
    assert killed not in breakable_suite.pids("tessera_text.worker")
    wait(lambda: breakable_suite.metric("text", "tessera_text_engine_kv_pages_used") == 0, "no page to be in use")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_engine_killed_before_the_first_token_costs_the_client_only_time(
    breakable_suite: Any, strict: openai.OpenAI, kill: Callable[[str], int], wait: Wait, stream: bool
) -> None:
    (engine,) = wait(lambda: breakable_suite.pids("tessera_text.worker"), "an engine")
    os.kill(engine, signal.SIGSTOP)  # so that no token can come before the kill
    answers: list[str] = []

    def ask() -> None:
        answer: Any = strict.chat.completions.create(
            model=TEXT, messages=QUESTION, max_tokens=24, temperature=0, stream=stream
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in answer] if stream else []
        answers.append("".join(pieces) if stream else answer.choices[0].message.content)

    asking = threading.Thread(target=ask)
    asking.start()

    def arrived() -> bool:
        sent = breakable_suite.metric("gateway", "tessera_gateway_upstream_in_flight", upstream="text")
        # The request for the metrics is one of those in flight.
        return sent == 1 and breakable_suite.metric("text", "tessera_http_requests_in_flight") >= 2

    try:
        wait(arrived, "the request to arrive")
    finally:
        kill("tessera_text.worker")
    asking.join(60)
    assert answers == ["The capital of Japan is Tokyo."]


def test_a_worker_killed_within_a_job_is_replaced_and_the_video_plays(
    breakable_suite: Any, client: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    video_id = begun(client, wait)
    wait(lambda: client.videos.retrieve(video_id).progress >= 30, "more than two checkpoints' steps")
    killed = kill("tessera_video.worker")
    assert client.videos.retrieve(video_id).status in ("in_progress", "queued")
    video = client.videos.poll(video_id, poll_interval_ms=200)
    assert (video.status, video.progress) == ("completed", 100)
    assert played(client, video_id) == LONG_FRAMES
    assert killed not in breakable_suite.pids("tessera_video.worker")
    log = breakable_suite.log("video-worker")
    assert f"{video_id} begins (attempt 2)" in log
    assert f"{video_id} goes on from a checkpoint" in log
    events = httpx.get(
        f"{client.base_url}videos/{video_id}/events", headers={"authorization": f"Bearer {client.api_key}"}
    )
    told = [json.loads(line[6:])["progress"] for line in events.text.splitlines() if line.startswith("data: ")]
    again = next(place for place in range(1, len(told)) if told[place] < told[place - 1])
    repeated = max(told[:again]) - next(progress for progress in told[again:] if progress)
    # Two steps are between the last of them and what was told of it; so many percent is a step.
    assert repeated <= (CHECKPOINT_STEPS + 2) * 95 / LONG_STEPS + 1
    files = {path.name for path in (breakable_suite.data / "artifacts" / video_id).rglob("*") if path.is_file()}
    assert len(files) == 3, f"one result, and nothing of the first attempt: {files}"


def test_redis_killed_between_create_and_poll_has_forgotten_nothing(
    breakable_suite: Any, client: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    waiting = [begun(client, wait)]
    waiting += [client.videos.create(prompt="short", seconds="1", extra_body={"steps": 1}).id for _ in range(3)]
    killed = kill("valkey-server")
    for video_id in waiting:
        video = client.videos.poll(video_id, poll_interval_ms=200)
        assert video.status == "completed", video.error
    assert killed not in breakable_suite.pids("valkey-server")
    assert played(client, waiting[0]) == LONG_FRAMES
    assert [video.id for video in client.videos.list(limit=4).data] == waiting[::-1]
    assert client.videos.create_and_poll(prompt="after", seconds="1", extra_body={"steps": 1}).status == "completed"


def test_while_redis_is_away_videos_are_refused_for_now_and_all_else_works(
    breakable_suite: Any, client: openai.OpenAI, strict: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    (redis,) = wait(lambda: breakable_suite.pids("valkey-server"), "a Redis")
    os.kill(redis, signal.SIGSTOP)
    try:
        with pytest.raises(openai.APIStatusError) as refused:
            strict.videos.create(prompt="now", seconds="1", extra_body={"steps": 1})
        assert (refused.value.status_code, refused.value.code) == (503, "unavailable")
        assert refused.value.response.headers["x-should-retry"] == "true"
        assert strict.chat.completions.create(model=TEXT, messages=QUESTION, max_tokens=1).choices
    finally:
        kill("valkey-server")
    assert client.videos.create_and_poll(prompt="then", seconds="1", extra_body={"steps": 1}).status == "completed"


def test_the_gateway_killed_while_a_video_is_polled_is_hardly_noticed(
    breakable_suite: Any, client: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    video_id = begun(client, wait)
    killed = kill("tessera_gateway ")
    video = client.videos.poll(video_id, poll_interval_ms=200)
    assert video.status == "completed"
    assert played(client, video_id) == LONG_FRAMES
    assert killed not in breakable_suite.pids("tessera_gateway ")
    assert f"{video_id} begins (attempt 2)" not in breakable_suite.log("video-worker"), "the worker went on"


def test_services_killed_all_at_once_come_back_with_new_engines(
    breakable_suite: Any, client: openai.OpenAI, kill: Callable[[str], int], wait: Wait
) -> None:
    def running() -> dict[str, set[int]] | None:
        found = {name: set(breakable_suite.pids(f"tessera_{name}.worker")) for name in ("text", "vision", "speech")}
        return found if all(found.values()) else None

    engines = wait(running, "an engine of each service, where one was killed before")
    killed = {name: kill(f"-m tessera_{name} ") for name in breakable_suite.urls}
    for name, pid in killed.items():
        wait(lambda name=name, pid=pid: set(breakable_suite.pids(f"-m tessera_{name} ")) - {pid}, f"another {name}")
    for model in (TEXT, "scenes-vision"):
        assert client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1).choices
    assert client.audio.speech.create(model="english-voices", voice="alloy", input="Hi.").content
    assert client.videos.create_and_poll(prompt="x", seconds="1", extra_body={"steps": 1}).status == "completed"
    for name, old in engines.items():
        assert not [pid for pid in old if Path(f"/proc/{pid}").exists()], f"an engine of {name} was left behind"


def test_speech_killed_within_a_file_does_not_look_whole(
    breakable_suite: Any, keys: tuple[str, str], kill: Callable[[str], int]
) -> None:
    body = {"model": "english-voices", "input": "Small stones. " * 200, "response_format": "pcm"}
    headers = {"authorization": f"Bearer {keys[0]}"}
    url = f"{breakable_suite.base_url}/v1/audio/speech"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        pieces = answer.iter_raw()
        assert next(pieces)
        kill("tessera_speech.worker")
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
