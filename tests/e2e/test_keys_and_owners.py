"""Keys at the gateway of a whole suite: who has none gets nothing, and a key's videos are its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

TEXT = "smollm2-135m-instruct"
HELLO: list[Any] = [{"role": "user", "content": "hi"}]
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{TEXT}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/videos"),
    ("GET", "/v1/videos"),
    ("GET", "/v1/videos/video_" + "0" * 32),
    ("GET", "/v1/videos/video_" + "0" * 32 + "/content"),
    ("DELETE", "/v1/videos/video_" + "0" * 32),
    ("POST", "/v1/videos/video_" + "0" * 32 + "/cancel"),
]


@pytest.fixture(autouse=True)
def _without_deprecation_warnings() -> Iterator[None]:
    """The SDK's, about OpenAI's own video service."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer", "Basic dXNlcjpwYXNz"])
def test_no_route_works_without_a_right_key(
    breakable_suite: Any, method: str, path: str, authorization: str | None
) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = httpx.request(method, breakable_suite.base_url + path, headers=headers, json={})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_operators_routes_need_no_key_and_tell_no_secret(breakable_suite: Any, keys: tuple[str, str]) -> None:
    for path in ("/health", "/ready", "/metrics", "/docs", "/docs/openapi.json", "/"):
        text = httpx.get(breakable_suite.base_url + path).raise_for_status().text
        assert not any(key in text for key in keys)


def test_the_sdk_understands_a_wrong_key_and_works_with_each_right_one(
    breakable_suite: Any, keys: tuple[str, str]
) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        breakable_suite.sdk("wrong").chat.completions.create(model=TEXT, messages=HELLO)
    assert refused.value.type == "authentication_error"
    for key in keys:
        assert breakable_suite.sdk(key).chat.completions.create(model=TEXT, messages=HELLO, max_tokens=1).choices


def test_a_keys_videos_are_its_own(breakable_suite: Any, keys: tuple[str, str]) -> None:
    mine, theirs = (breakable_suite.sdk(key) for key in keys)
    video = mine.videos.create_and_poll(prompt="mine", seconds="1", extra_body={"steps": 1}, poll_interval_ms=100)
    assert video.status == "completed"
    assert video.id in [listed.id for listed in mine.videos.list()]
    assert mine.videos.download_content(video.id).read()
    assert video.id not in [listed.id for listed in theirs.videos.list()]
    for forbidden in (theirs.videos.retrieve, theirs.videos.download_content, theirs.videos.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            forbidden(video.id)
        assert video.id in refused.value.message, "as if it were not there"
    with pytest.raises(openai.NotFoundError):
        theirs.post(f"/videos/{video.id}/cancel", cast_to=object)
    assert mine.videos.retrieve(video.id) == video
    assert mine.videos.delete(video.id).deleted


def test_an_idempotency_key_belongs_to_the_api_key(breakable_suite: Any, keys: tuple[str, str]) -> None:
    body = {"prompt": "twice", "seconds": "1", "steps": 1}
    ids = {
        httpx.post(
            f"{breakable_suite.base_url}/v1/videos",
            json=body,
            headers={"authorization": f"Bearer {key}", "idempotency-key": "the-same"},
        ).json()["id"]
        for key in (*keys, *keys)
    }
    assert len(ids) == 2


def test_no_key_is_in_a_log_or_on_the_disk(breakable_suite: Any, keys: tuple[str, str], wait: Any) -> None:
    def at_rest() -> bool:
        """Every video has ended: what is still being made moves from one path to another."""
        videos = [video for key in keys for video in breakable_suite.sdk(key).videos.list(limit=100).data]
        return all(video.status in {"completed", "failed", "cancelled"} for video in videos)

    def on_the_disk() -> dict[Path, bytes] | None:
        """What lies there; None if something moved meanwhile (Redis writes its log anew, files are taken in)."""
        try:
            return {path: path.read_bytes() for path in breakable_suite.data.rglob("*") if path.is_file()}
        except FileNotFoundError:
            return None

    wait(at_rest, "all videos to have ended")
    files = wait(on_the_disk, "a look at all files of which none moved")
    assert any(path.name == "gateway.log" for path in files)
    for path, data in files.items():
        assert not any(key.encode() in data for key in keys), path
