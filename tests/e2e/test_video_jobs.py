"""Video jobs from creation to deletion through the gateway: OpenAI's SDK (multipart), plain JSON, paging, ranges."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest

from tessera_video.starter.checker import ObservedClip, ObservedThing, observe

VIDEO = "shapes-video"
PROMPT, OTHER = "a blue circle moves right", "a red square moves up"
SHORT: dict[str, Any] = {"model": VIDEO, "seconds": "1", "size": "64x64"}


@pytest.fixture(autouse=True)
def _without_deprecation_warnings() -> Iterator[None]:
    """The SDK's, about OpenAI's own video service."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture(scope="module")
def made(suite: Any, wait: Any) -> Any:
    """A finished video, made by the SDK from its creation on."""
    wait(alone(suite), "other tests' videos")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return suite.sdk().videos.create_and_poll(
            prompt=PROMPT, model=VIDEO, seconds="4", size="96x64", extra_body={"seed": 3, "steps": 4}
        )


def alone(suite: Any) -> Callable[[], bool]:
    """Whether no video is being made. Steps that clips share may differ in the last bit from steps of one."""

    def look() -> bool:
        videos = httpx.get(f"{suite.base_url}/v1/videos", params={"limit": 100}).json()["data"]
        return all(video["status"] in {"completed", "failed", "cancelled"} for video in videos)

    return look


def ended(suite: Any, video_id: str) -> Callable[[], dict[str, Any] | None]:
    def look() -> dict[str, Any] | None:
        video = httpx.get(f"{suite.base_url}/v1/videos/{video_id}").raise_for_status().json()
        return video if video["status"] in ("completed", "failed") else None

    return look


def test_create_and_poll_ends_with_a_completed_video(made: Any) -> None:
    assert made.status == "completed"
    assert made.progress == 100
    assert (made.object, made.model, made.seconds, made.size) == ("video", VIDEO, "4", "96x64")
    assert made.created_at <= made.completed_at <= made.expires_at
    assert made.error is None


def test_a_clip_shows_what_was_asked_for(suite: Any) -> None:
    """As an independent judge sees the file that a browser would play."""
    shown = []
    for colour, shape, motion, said in (
        ("red", "circle", "right", "moves right"),
        ("blue", "square", "up", "moves up"),
        ("green", "triangle", "grow", "grows"),
    ):
        asked = f"a {colour} {shape} {said} on a white background"
        video = suite.sdk().videos.create_and_poll(prompt=asked, model=VIDEO, extra_body={"seed": 1})
        assert video.status == "completed"
        with av.open(io.BytesIO(suite.sdk().videos.download_content(video.id).read())) as container:
            sight = observe(np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]))
        shown.append(sight == ObservedClip("white", (ObservedThing(colour, shape, motion),)))
    assert sum(shown) >= 2, shown  # of a model that is right nine times out of ten


def test_the_content_is_h264_that_browsers_play(suite: Any, made: Any) -> None:
    content = suite.sdk().videos.download_content(made.id)
    assert content.response.headers["content-type"] == "video/mp4"
    data = content.read()
    assert data.index(b"moov") < data.index(b"mdat"), "the index comes first, so that it plays while it loads"
    with av.open(io.BytesIO(data)) as container:
        (stream,) = container.streams.video
        frames = list(container.decode(stream))
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.average_rate) == (96, 64, 4)
    assert len(frames) == 17  # 4 s of 4 frames, as 4k + 1


def test_a_thumbnail_is_a_picture_of_it(suite: Any, made: Any) -> None:
    data = suite.sdk().videos.download_content(made.id, variant="thumbnail").read()
    with av.open(io.BytesIO(data)) as container:
        (frame,) = container.decode(video=0)
    assert (frame.width, frame.height) == (96, 64)


def test_a_spritesheet_shows_all_of_it(suite: Any, made: Any) -> None:
    answer = suite.sdk().videos.download_content(made.id, variant="spritesheet")
    assert answer.response.headers["content-type"] == "image/jpeg"
    assert answer.response.headers["content-disposition"] == f'inline; filename="{made.id}-spritesheet.jpg"'
    with av.open(io.BytesIO(answer.read())) as container:
        (frame,) = container.decode(video=0)
    assert (frame.width, frame.height) == (5 * 96, 4 * 64)  # 17 frames, five in a row


@pytest.mark.parametrize(
    ("output_format", "content_type", "codec"), [("webm", "video/webm", "vp9"), ("gif", "image/gif", "gif")]
)
def test_other_containers_have_all_frames_at_their_rate_and_say_what_was_asked(
    suite: Any, output_format: str, content_type: str, codec: str
) -> None:
    client = suite.sdk()
    more = {"seed": 3, "steps": 2, "fps": 10, "frames": 13, "output_format": output_format}
    video = client.videos.create_and_poll(prompt=PROMPT, model=VIDEO, size="96x64", extra_body=more)
    assert (video.status, video.seconds) == ("completed", "1.3")
    content = client.videos.download_content(video.id)
    assert content.response.headers["content-type"] == content_type
    with av.open(io.BytesIO(content.read())) as container:
        (stream,) = container.streams.video
        frames = list(container.decode(stream))
        said = json.loads(next(value for name, value in container.metadata.items() if name.lower() == "comment"))
        assert (stream.codec_context.name, stream.average_rate, len(frames)) == (codec, 10, 13)
    assert (said["prompt"], said["seed"], said["steps"], said["model"]) == (PROMPT, 3, 2, VIDEO)


def test_a_remix_keeps_everything_but_the_prompt(suite: Any, made: Any, wait: Any) -> None:
    client = suite.sdk()
    wait(alone(suite), "other tests' videos")
    remix = client.videos.remix(made.id, prompt=OTHER)
    assert (remix.remixed_from_video_id, remix.prompt) == (made.id, OTHER)
    remix = client.videos.poll(remix.id)
    assert (remix.status, remix.size, remix.seconds, remix.model) == ("completed", made.size, made.seconds, made.model)
    one, other = (client.videos.download_content(name).read() for name in (made.id, remix.id))
    assert one != other
    again = client.videos.poll(client.videos.remix(remix.id, prompt=made.prompt).id)
    assert client.videos.download_content(again.id).read() == one, "the seed is the same"


def test_ranges_and_validators_are_obeyed(suite: Any, made: Any) -> None:
    url = f"{suite.base_url}/v1/videos/{made.id}/content"
    whole = httpx.get(url)
    part = httpx.get(url, headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.content)}"
    tail = httpx.get(url, headers={"range": "bytes=-5"})
    assert (tail.status_code, tail.content) == (206, whole.content[-5:])
    outside = httpx.get(url, headers={"range": f"bytes={len(whole.content)}-"})
    assert (outside.status_code, outside.json()["error"]["code"]) == (416, "range_not_satisfiable")
    assert httpx.get(url, headers={"if-none-match": whole.headers["etag"]}).status_code == 304
    head = httpx.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole.content)))


def test_the_same_seed_makes_the_same_video_from_json_as_from_a_form(suite: Any, made: Any, wait: Any) -> None:
    body = {"prompt": PROMPT, "model": VIDEO, "seconds": 4, "size": "96x64", "seed": 3, "steps": 4}
    wait(alone(suite), "other tests' videos")
    created = httpx.post(f"{suite.base_url}/v1/videos", json=body)
    assert created.status_code == 200
    assert created.json()["status"] == "queued"
    assert int(created.headers["openai-poll-after-ms"]) > 0
    video = wait(ended(suite, created.json()["id"]), "the video")
    assert video["status"] == "completed"
    one, other = (suite.sdk().videos.download_content(name).read() for name in (made.id, video["id"]))
    assert one == other


def test_an_idempotency_key_makes_one_job_of_two_requests(suite: Any) -> None:
    def create(**more: Any) -> httpx.Response:
        body = {"prompt": "once", "steps": 1, **SHORT, **more}
        return httpx.post(f"{suite.base_url}/v1/videos", json=body, headers={"idempotency-key": "once-only"})

    first, second, other = create(), create(), create(prompt="another")
    assert first.json()["id"] == second.json()["id"]
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert (other.status_code, other.json()["error"]["type"]) == (422, "invalid_request_error")


def test_the_list_pages_through_all_videos_newest_first(suite: Any) -> None:
    client = suite.sdk()
    names = [client.videos.create(prompt=f"tile {number}", **SHORT, extra_body={"steps": 1}).id for number in range(5)]
    listed = [video.id for video in client.videos.list(limit=2)]  # the SDK asks for page after page
    assert [name for name in listed if name in names] == names[::-1]
    assert len(listed) == len(set(listed))
    page = client.videos.list(limit=2)
    assert [video.id for video in page.data] == names[:2:-1]
    assert page.has_more
    rest = client.videos.list(limit=100, after=names[3], order="asc")
    assert [video.id for video in rest.data] == [names[4]]
    assert not rest.has_more


def test_a_cancelled_job_stops_and_a_deleted_one_is_gone(suite: Any, wait: Any) -> None:
    client = suite.sdk()
    long = {"steps": 100}
    running = client.videos.create(prompt="long", model=VIDEO, seconds="20", size="96x64", extra_body=long)
    wait(lambda: client.videos.retrieve(running.id).status == "in_progress", "the job to begin")
    assert httpx.post(f"{suite.base_url}/v1/videos/{running.id}/cancel").status_code == 200
    video = wait(ended(suite, running.id), "the job to end")
    assert (video["status"], video["error"]["code"]) == ("failed", "cancelled")
    assert client.videos.delete(running.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(running.id)

    doomed = client.videos.create(prompt="long", model=VIDEO, seconds="20", size="96x64", extra_body=long)
    wait(lambda: client.videos.retrieve(doomed.id).status == "in_progress", "the job to begin")
    assert client.videos.delete(doomed.id).deleted
    after = client.videos.create(prompt="after", **SHORT, extra_body={"steps": 1})
    assert wait(ended(suite, after.id), "the next job")["status"] == "completed"
    wait(lambda: not (suite.data / "artifacts" / doomed.id).exists(), "its files to be gone")


def test_content_of_what_is_not_there_is_a_clear_error(suite: Any, made: Any) -> None:
    client = suite.sdk()
    waiting = client.videos.create(prompt="long", model=VIDEO, seconds="20", size="96x64", extra_body={"steps": 50})
    with pytest.raises(openai.ConflictError, match="only a completed one has content"):
        client.videos.download_content(waiting.id)
    client.videos.delete(waiting.id)
    with pytest.raises(openai.BadRequestError, match="spritesheet, thumbnail, video"):
        client.videos.download_content(made.id, variant="poster")  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        client.videos.download_content("video_" + "0" * 32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", "9999"),
        ("size", "65x64"),
        ("size", "9000x9000"),
        ("model", "another-video-model"),
        ("input_reference", (b"\x89PNG\r\n\x1a\n" + b"0" * 64)),
        ("prompt", ""),
    ],
)
def test_a_video_that_cannot_be_made_is_refused_by_field_before_there_is_a_job(
    suite: Any, field: str, value: Any
) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, **SHORT, field: value}
    with pytest.raises(openai.APIStatusError) as refused:
        suite.sdk().videos.create(**asked)
    assert refused.value.status_code in (400, 404)
    assert refused.value.param == field
