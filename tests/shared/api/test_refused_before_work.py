"""What is refused before it is work: step caches that no worker has, and what takes longer than its client waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient
from tests.shared.api import test_images, test_videos
from tests.shared.api.test_videos import TEXT_CARD

from tessera.api.estimates import LEAST_RUN_S, seconds_by_own_pace
from tessera.hub.step_caches import CALIBRATION_FILE, step_caches_of
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.runner import JobContext
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.settings.video import VideoSettings
from tessera.wire.audio import TranscriptionRequest
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera.wire.images import ImageGenerationRequest
from tessera.wire.jobs import Artifact, Job
from tessera.wire.models import Card, StepCacheName
from tessera.wire.videos import VideoCreateRequest, VideoExtendRequest, VideoRemixRequest
from tessera_video.catalog import Catalog


class MeasuredHouse(test_videos.House):
    """Its model's workers have the step caches `known`, and take `video` settings."""

    known: list[StepCacheName] | None = None

    def __init__(self, data: str, redis_url: str) -> None:
        super().__init__(data, redis_url)
        self.settings = msgspec.structs.replace(
            self.settings, video=msgspec.structs.replace(self.settings.video, max_estimated_s=0)
        )

    async def cards(self, name: str | None) -> Card:
        return msgspec.structs.replace(TEXT_CARD, step_caches=self.known)


def has_worker(house: test_images.House | test_videos.House, seconds: float, largest: float | None = None) -> None:
    """A worker is there, and a unit of cost took so long for jobs up to the cost `largest`."""
    info = WorkerInfo(id="w", kind="video", queue="video.tiny", card=TEXT_CARD, device="cpu", pid=1, slots=1)
    house.store.register_worker(info, seconds=60)
    house.store._redis.hset("tessera:jobs:flow:video.tiny", "seconds", seconds)
    if largest is not None:
        house.store._redis.hset("tessera:jobs:flow:video.tiny", "largest", largest)


@pytest.fixture
def videos(redis_server: Any) -> MeasuredHouse:
    return MeasuredHouse(str(redis_server.data), redis_server.url)


@pytest.fixture
def client(videos: MeasuredHouse) -> Iterator[TestClient[Litestar]]:
    with TestClient(videos.app()) as found:
        yield found


def create(client: TestClient[Litestar], **fields: Any) -> Any:
    return client.post("/v1/videos", json={"prompt": "a cat", **fields})


@pytest.mark.parametrize(
    ("known", "asked", "words"),
    [
        ([], "first_block", "computed by several devices together or by its own loop"),
        (["first_block"], "polynomial", "was not measured: ask for 'first_block', or run `python -m tessera_video.cal"),
        (["first_block"], "magnitude", "was not measured"),
        (["first_block"], "first_block", None),
        (["first_block", "polynomial", "magnitude"], "magnitude", None),
        ([], "off", None),
        (None, "magnitude", None),
    ],
)
def test_a_step_cache_that_the_model_has_not_is_refused_at_once(
    videos: MeasuredHouse,
    client: TestClient[Litestar],
    known: list[StepCacheName] | None,
    asked: str,
    words: str | None,
) -> None:
    videos.known = known
    answer = create(client, step_cache=asked)
    if words is None:
        assert answer.status_code == 200, answer.text
        return
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "step_cache")
    assert words in answer.json()["error"]["message"]
    assert videos.store.counts().queued == 0


def test_a_remix_is_refused_as_well_when_its_step_cache_is_gone(
    videos: MeasuredHouse, client: TestClient[Litestar]
) -> None:
    videos.known = ["first_block", "polynomial", "magnitude"]
    video = create(client, step_cache="magnitude").json()["id"]
    videos.complete(video, b"clip")
    videos.known = ["first_block"]
    answer = client.post(f"/v1/videos/{video}/remix", json={"prompt": "a dog"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "step_cache")


def test_a_cards_step_caches_are_what_its_workers_can_do() -> None:
    assert step_caches_of(calibrated=False, shared_by=1) == ["first_block"]
    assert step_caches_of(calibrated=True, shared_by=1) == list(get_args(StepCacheName))
    assert step_caches_of(calibrated=True, shared_by=2) == []


def worker(name: str, step_caches: list[StepCacheName] | None) -> WorkerInfo:
    card = msgspec.structs.replace(TEXT_CARD, step_caches=step_caches)
    return WorkerInfo(id=name, kind="video", queue="video.tiny", card=card, device="cpu", pid=1)


@pytest.mark.parametrize(
    ("each", "common"),
    [
        ([["first_block", "polynomial", "magnitude"], ["first_block"]], ["first_block"]),
        ([["first_block"], []], []),
        ([["first_block"], None], ["first_block"]),
        ([None], None),
    ],
)
def test_of_several_workers_the_step_caches_of_all_are_offered(
    each: list[list[StepCacheName] | None], common: list[StepCacheName] | None
) -> None:
    catalog = Catalog(Settings(), store=None)  # type: ignore[arg-type]
    catalog.workers = [worker(str(place), known) for place, known in enumerate(each)]
    (card,) = [card for card in catalog._cards() if card.id == "tiny"]
    assert card.step_caches == common


@pytest.mark.parametrize(
    ("measured", "devices", "known"),
    [(True, 1, ["first_block", "polynomial", "magnitude"]), (False, 1, ["first_block"]), (True, 2, [])],
)
def test_before_a_worker_is_there_the_models_files_say_it(
    tmp_path: Path, measured: bool, devices: int, known: list[StepCacheName]
) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "card.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(TEXT_CARD, id="own")))
    if measured:
        (directory / CALIBRATION_FILE).write_text("{}")
    settings = Settings(
        suite=SuiteSettings(models=str(tmp_path)), video=VideoSettings(model=str(directory), devices=devices)
    )
    card = Catalog(settings, store=None)._on_disk()  # type: ignore[arg-type]
    assert card is not None
    assert card.step_caches == known


def test_a_clip_that_takes_longer_than_its_deadline_is_refused_with_the_estimate(
    videos: MeasuredHouse, client: TestClient[Litestar]
) -> None:
    has_worker(videos, 100.0)
    asked = {"size": "64x64", "frames": 9, "steps": 20, "guidance_scale": 1.0}  # 0.74 units of cost: 74 s
    answer = create(client, **asked, deadline_s=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "takes_too_long", "deadline_s")
    assert "this clip would take about 74 s on this server now, and the request waits 30 s" in error["message"]
    assert videos.store.counts().queued == 0
    assert create(client, **asked, deadline_s=100).status_code == 200


def test_a_clip_without_a_deadline_says_when_it_is_expected_and_waits(
    videos: MeasuredHouse, client: TestClient[Litestar]
) -> None:
    has_worker(videos, 1000.0)
    made = create(client, size="64x64", frames=9, steps=20, guidance_scale=1.0).json()
    assert made["estimated_completion_at"] - made["created_at"] == pytest.approx(737, abs=3)


def test_a_clip_that_would_take_this_machine_long_is_refused_unless_the_client_waits(videos: MeasuredHouse) -> None:
    videos.settings = msgspec.structs.replace(
        videos.settings, video=msgspec.structs.replace(videos.settings.video, max_estimated_s=60)
    )
    has_worker(videos, 100.0)
    with TestClient(videos.app()) as client:
        asked = {"size": "64x64", "frames": 17, "steps": 20, "guidance_scale": 1.0}
        error = create(client, **asked).json()["error"]
        assert (error["code"], error["param"]) == ("takes_too_long", "deadline_s")
        assert "as `deadline_s`" in error["message"]
        assert create(client, **asked, deadline_s=1000).status_code == 200
        short = {**asked, "frames": 5, "steps": 10}
        assert create(client, **short).status_code == 200, "its time in the queue does not count"


def test_a_large_clip_is_not_judged_by_the_time_of_a_small_one(videos: MeasuredHouse) -> None:
    has_worker(videos, 10_000.0, largest=0.01)
    with TestClient(videos.app()) as client:
        made = create(client, size="64x64", frames=9, steps=20, guidance_scale=1.0)
    assert made.status_code == 200
    assert made.json()["estimated_completion_at"] is None


@pytest.fixture
def images(redis_server: Any) -> Iterator[test_images.House]:
    house = test_images.House(str(redis_server.data), redis_server.url)
    house.settings = msgspec.structs.replace(
        house.settings, video=msgspec.structs.replace(house.settings.video, image_patience_s=10, image_wait_s=60)
    )
    house.thread.start()
    yield house
    house._closing.set()
    house.thread.join(10)


def test_images_that_would_take_minutes_are_refused_unless_the_client_waits(images: test_images.House) -> None:
    has_worker(images, 1000.0)
    asked = {"prompt": "a cat", "size": "64x64", "steps": 8, "guidance_scale": 1.0}  # 0.033 units of cost: 33 s
    with TestClient(images.app()) as client:
        answer = client.post("/v1/images/generations", json=asked)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (422, "takes_too_long", "deadline_s")
        assert "would take about 33 s on this server now, and the request waits 10 s" in error["message"]
        assert images.empty(), "neither a record nor a file is left"
        assert client.post("/v1/images/generations", json={**asked, "deadline_s": 50}).status_code == 200


def test_images_of_an_unknown_machine_are_refused_when_their_first_steps_show_it(images: test_images.House) -> None:
    stopped = threading.Event()

    def slow(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        try:
            for done in range(1, 1000):
                context.step(done // 10)
                time.sleep(0.05)  # the time of a step; of a thousand they are 50 s
        finally:
            stopped.set()
        return {}

    images.handler = slow
    began = time.monotonic()
    with TestClient(images.app()) as client:
        answer = client.post("/v1/images/generations", json={"prompt": "a cat"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "takes_too_long")
    assert time.monotonic() - began < 8, "long before its 50 s, or the 60 s that any client may wait"
    assert stopped.wait(10), "its worker does not go on"


def test_a_jobs_own_pace_counts_when_it_has_run_for_a_while() -> None:
    job = Job(
        id="image_1",
        kind="image",
        owner="",
        queue="q",
        status="in_progress",
        input=msgspec.Raw(b"{}"),
        progress=10,
        attempts=1,
        cancel_requested=False,
        created_at=100.0,
        started_at=105.0,
    )
    assert seconds_by_own_pace(job, 10, now=105 + LEAST_RUN_S / 2) is None
    assert seconds_by_own_pace(job, 1, now=115.0) is None
    assert seconds_by_own_pace(job, 99, now=115.0) is None
    assert seconds_by_own_pace(job, 10, now=115.0) == 105.0
    assert seconds_by_own_pace(msgspec.structs.replace(job, started_at=None), 10, now=115.0) is None


BODIES = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    ImageGenerationRequest: {"prompt": "a cat"},
    VideoCreateRequest: {"prompt": "a cat"},
    VideoRemixRequest: {"prompt": "a cat"},
    VideoExtendRequest: {"prompt": "a cat", "video": {"id": "v"}, "seconds": 2},
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("deadline_s", [1e-320, 0.0, -1.0, 0.009, 1e300])
def test_a_deadline_that_nothing_could_meet_is_refused_by_name(kind: Any, deadline_s: float) -> None:
    with pytest.raises(Exception, match="deadline_s") as caught:
        decode_json(msgspec.json.encode(BODIES[kind] | {"deadline_s": deadline_s}), kind)
    assert getattr(caught.value, "status", 0) == 400


def test_the_deadline_of_a_transcription_has_the_same_bounds() -> None:
    with pytest.raises(msgspec.ValidationError, match="deadline_s"):
        msgspec.convert({"model": "m", "deadline_s": 1e-320}, TranscriptionRequest)
