"""`/v1/videos/extensions` and `/edits`, and clips that no worker has memory for, over a real Redis without a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient
from tests.shared.api.test_videos import EITHER_CARD, TEXT_CARD, House, _create, _input
from tests.shared.jobs.test_store import Given, Stores

from tessera.errors import InvalidRequestError
from tessera.hub.clip_memory import ClipMemoryBudget, ClipShape, Shapes, estimate
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card, ClipMemory

SHAPES = Shapes(
    frames_multiple=4,
    spatial=8,
    patch=4,
    size_multiple=16,
    channels=16,
    width=64,
    hidden=128,
    decoder_width=32,
    decoded_at_once=1,
    bytes_each=4,
)


class SmallHouse(House):
    """A model whose workers have just enough memory for nine frames of 64x64."""

    capacity = estimate(ClipShape(width=64, height=64, frames=9, guidance_scale=5.0), SHAPES)

    async def cards(self, name: str | None) -> Card:
        memory = ClipMemory(capacity=self.capacity, shapes=dataclasses.asdict(SHAPES))
        return msgspec.structs.replace(EITHER_CARD, clip_memory=memory)


@pytest.fixture
def house(redis_server: Any) -> House:
    return House(str(redis_server.data), redis_server.url)


@pytest.fixture
def client(house: House) -> Iterator[TestClient[Litestar]]:
    with TestClient(house.app()) as found:
        yield found


def _extend(client: TestClient[Litestar], video_id: str, **fields: Any) -> Any:
    body = {"prompt": "and then", "seconds": "2", "video": {"id": video_id}, **fields}
    return client.post("/v1/videos/extensions", json=body)


def test_an_extension_goes_on_from_a_completed_video_and_keeps_its_file(
    house: House, client: TestClient[Litestar]
) -> None:
    source = _create(client, model=EITHER_CARD.id, seconds="1", size="64x32", steps=3, seed=7)["id"]
    early = _extend(client, source)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "conflict")
    lease = house.claim(source)
    before = msgspec.json.decode(lease.job.input, type=VideoInput)
    video = house.artifacts.put(f"{source}/1-video.mp4", b"the old clip", "video/mp4")
    house.store.complete(lease, {"video": video})

    shown = _extend(client, source, seed=8).json()
    assert (shown["status"], shown["prompt"], shown["extended_from_video_id"]) == ("queued", "and then", source)
    assert (before.frames, before.fps, shown["seconds"], shown["size"]) == (9, 8, "3.125", "64x32")
    given = _input(house, shown["id"])
    assert (given.extends, given.before, given.frames, given.seed, given.steps) == (source, 9, 17, 8, 3)
    assert given.image == f"{shown['id']}/input"
    client.delete(f"/v1/videos/{source}")
    with house.artifacts.open(given.image) as file:
        assert file.read() == b"the old clip", "of its own, whatever becomes of the old video"


def test_an_extension_can_be_extended_and_remixed(house: House, client: TestClient[Litestar]) -> None:
    source = _create(client, model=EITHER_CARD.id, seconds="1")["id"]
    house.complete(source, b"one")
    longer = _extend(client, source).json()["id"]
    house.complete(longer, b"two")
    longest = _extend(client, longer, seconds=1).json()
    assert longest["seconds"] == "4.125"
    assert _input(house, longest["id"]).before == 25
    remixed = client.post(f"/v1/videos/{longer}/remix", json={"prompt": "otherwise"}).json()
    given = _input(house, remixed["id"])
    assert (given.extends, given.before, given.prompt) == (source, 9, "otherwise")
    with house.artifacts.open(str(given.image)) as file:
        assert file.read() == b"one"


def test_a_form_as_the_official_sdk_sends_it_is_taken(house: House, client: TestClient[Litestar]) -> None:
    """What `client.videos.extend(prompt=, seconds=, video={"id": …})` and `edit` put on the wire."""
    source = _create(client, model=EITHER_CARD.id, seconds="1")["id"]
    house.complete(source, b"one")
    form = {"prompt": (None, "and then"), "seconds": (None, "4"), "video[id]": (None, source)}
    video = client.post("/v1/videos/extensions", files=form)
    assert (video.status_code, video.json()["status"], video.json()["seconds"]) == (200, "queued", "5.125")
    again = [client.post("/v1/videos/extensions", files=form, headers={"idempotency-key": "k"}) for _ in range(2)]
    assert again[0].json()["id"] == again[1].json()["id"]
    form = {"prompt": (None, "in blue"), "video[id]": (None, source)}
    refused = client.post("/v1/videos/edits", files=form)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_operation")
    assert "remix" in refused.json()["error"]["message"]


def test_what_cannot_go_on_says_why(house: House, client: TestClient[Litestar]) -> None:
    text_only = _create(client, seconds="1")["id"]
    house.complete(text_only, b"clip")
    refused = _extend(client, text_only).json()["error"]
    assert (refused["param"], refused["code"]) == ("video", "unsupported_operation")
    assert TEXT_CARD.id in refused["message"]
    source = _create(client, model=EITHER_CARD.id, seconds="10")["id"]
    house.complete(source, b"clip")
    for fields, param in (
        ({"seconds": "11"}, "seconds"),
        ({"seconds": "0"}, "seconds"),
        ({"prompt": ""}, "prompt"),
        ({"video": "x"}, "video"),
    ):
        answer = _extend(client, source, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert _extend(client, f"video_{'0' * 32}").status_code == 404
    form = {"prompt": (None, "b"), "seconds": (None, "4"), "video": ("x.mp4", b"clip", "video/mp4")}
    file = client.post("/v1/videos/extensions", files=form)
    assert (file.status_code, file.json()["error"]["param"]) == (400, "video")
    house.settings = msgspec.structs.replace(
        house.settings, video=msgspec.structs.replace(house.settings.video, max_extended_seconds=12)
    )
    with TestClient(house.app()) as stricter:
        answer = _extend(stricter, source, seconds="4")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seconds")
        assert "which leaves" in answer.json()["error"]["message"]


def test_a_clip_that_no_worker_has_memory_for_is_no_job(redis_server: Any) -> None:
    house = SmallHouse(str(redis_server.data), redis_server.url)
    with TestClient(house.app()) as client:
        fits = _create(client, frames=9, size="64x64")
        for route, body in (
            ("/v1/videos", {"prompt": "a cat", "frames": 33, "size": "64x64"}),
            ("/v1/videos", {"prompt": "a cat", "frames": 9, "size": "128x128"}),
            ("/v1/images/generations", {"prompt": "a cat", "size": "512x512"}),
        ):
            answer = client.post(route, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, "size", "too_large"), answer.text
            assert "GiB" in error["message"]
        large = client.post("/v1/videos", json={"prompt": "a cat", "frames": 9, "size": "128x128"})
        assert "of so many frames the largest `size` is 64x64" in large.json()["error"]["message"]
        long = client.post("/v1/videos", json={"prompt": "a cat", "frames": 33, "size": "64x64"})
        assert "at this size at most 9 frames fit" in long.json()["error"]["message"]
        assert [video["id"] for video in client.get("/v1/videos").json()["data"]] == [fits["id"]]
        source = fits["id"]
        house.complete(source, b"clip")
        assert _extend(client, source, seconds="4").json()["error"]["code"] == "too_large"


def test_services_and_workers_refuse_the_same() -> None:
    """The check of the service is the worker's own."""
    clip = ClipShape(width=64, height=64, frames=9, guidance_scale=5.0)
    need = estimate(clip, SHAPES)
    ClipMemoryBudget(need).check(clip, SHAPES)
    with pytest.raises(InvalidRequestError, match="GiB"):
        ClipMemoryBudget(need - 1).check(clip, SHAPES)


def test_images_that_nobody_fetches_end_soon_after_their_job(house: House, redis_server: Any) -> None:
    """As when the gateway is killed while a client waits: the record has been written with its own time."""
    stores = Stores(redis_server.url)
    stores.http("create", "image_1", kind="image", owner="me", queue="q", job_input=Given("a cat"), keep_s=0.05)
    lease = stores.worker.claim("image_1", worker="w")
    file = house.artifacts.put("image_1/1-image-0.png", b"png", "image/png")
    assert stores.worker.complete(lease, {"image-0": file}) == "completed"  # type: ignore[arg-type]
    job = stores.http("get", "image_1", kind="image", owner="me")
    assert job.expires_at - job.ended_at == pytest.approx(0.05, abs=1e-6)  # times are seconds since 1970
    while not (expired := stores.worker.expire()):
        pass
    assert expired == ["image_1"]
