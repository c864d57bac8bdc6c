"""`/v1/images/generations` over a real Redis: what is accepted, waited for and refused; nothing is left behind."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient
from prometheus_client import CollectorRegistry

from tessera.api.mounting import mount_videos
from tessera.errors import InvalidRequestError, ModelNotFoundError, StorageFullError, UnavailableError
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.worker.runner import JobContext, JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.settings.video import VideoSettings
from tessera.web.app import build_app
from tessera.wire.jobs import Artifact, ImageInput, Job
from tessera.wire.models import Card

CARD = Card(
    id="tiny",
    family="WanPipeline",
    tasks=["video"],
    source="test",
    parameters=1,
    licence="none",
    sizes=["64x64"],
    frames_multiple=4,
    size_multiple=16,
    steps=8,
)
NEEDS_IMAGE = msgspec.structs.replace(CARD, id="tiny-i2v", image_input="required")
Handler = Callable[[Job, JobContext], Mapping[str, Artifact]]


class SilentBell:
    def ring(self, job_id: str, queue: str) -> None:
        pass


class House:
    """The routes in an app, and a worker in a thread that paints each image with its seed."""

    def __init__(self, data: str, redis_url: str) -> None:
        self.settings = Settings(
            suite=SuiteSettings(data=data),
            jobs=JobSettings(lease_s=1, reap_every_s=0.1, max_queued_per_key=2, backoff_s=0, max_attempts=2),
            video=VideoSettings(max_steps=12, max_pixels=512 * 512, max_images=3, image_wait_s=20),
        )
        self.redis_url = redis_url
        self.store = WorkerStore(redis_url, timeout_s=2, settings=self.settings.jobs)
        self.artifacts = DirectoryArtifacts(self.settings.artifacts_dir)
        self.given: list[ImageInput] = []
        self.handler: Handler = self.paint
        self.working = threading.Event()
        self._closing = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    async def cards(self, name: str | None) -> Card:
        for card in (CARD, NEEDS_IMAGE):
            if name in (card.id, None):
                return card
        raise ModelNotFoundError(f"there is no video model {name!r}", param="model")

    def app(self) -> Litestar:
        videos = mount_videos(self.settings, self.cards)
        return build_app(
            "video",
            videos.route_handlers,
            ready=videos.ready,
            registry=CollectorRegistry(),
            description="",
            lifespan=videos.lifespan,
        )

    def paint(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        given = msgspec.json.decode(job.input, type=ImageInput)
        self.given.append(given)
        return {
            f"image-{index}": self.artifacts.put(
                context.key(f"image-{index}.png"), b"image %d" % (given.seed + index), "image/png"
            )
            for index in range(given.count)
        }

    def _work(self) -> None:
        def do(job: Job, context: JobContext) -> Mapping[str, Artifact]:
            self.working.set()
            return self.handler(job, context)

        handlers = {"image": do, "video": do}
        self.runner = JobRunner(self.store, self.artifacts, SilentBell(), handlers, worker="w", queue="video.tiny")
        while not self._closing.wait(0.01):
            self.runner.run()

    def empty(self) -> bool:
        counts = self.store.counts()
        files = [path for path in self.artifacts.directory.rglob("*") if path.is_file()]
        return (counts.queued, counts.in_progress, counts.ended, files) == (0, 0, 0, [])

    def close(self) -> None:
        self._closing.set()
        self.runner.drain()
        self.thread.join()
        self.store.close()


@pytest.fixture
def house(redis_server: Any) -> Iterator[House]:
    found = House(str(redis_server.data), redis_server.url)
    found.thread.start()
    yield found
    found.close()


@pytest.fixture
def client(house: House) -> Iterator[TestClient[Litestar]]:
    with TestClient(house.app()) as found:
        yield found


def _ask(client: TestClient[Litestar], **fields: Any) -> Any:
    return client.post("/v1/images/generations", json={"prompt": "a cat", **fields})


def test_images_come_in_openais_shape_and_nothing_is_left(house: House, client: TestClient[Litestar]) -> None:
    answer = _ask(client, n=2, seed=7, size="128x64", steps=3, guidance_scale=2.0, negative_prompt="dogs")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [base64.b64decode(image["b64_json"]) for image in body["data"]] == [b"image 7", b"image 8"]
    assert [image["seed"] for image in body["data"]] == [7, 8]
    assert {name: body[name] for name in ("size", "output_format", "quality", "background")} == {
        "size": "128x64",
        "output_format": "png",
        "quality": "medium",
        "background": "opaque",
    }
    assert abs(body["created"] - time.time()) < 60
    given = house.given[0]
    assert (given.width, given.height, given.steps, given.guidance_scale) == (128, 64, 3, 2.0)
    assert (given.negative_prompt, given.count, given.output_format) == ("dogs", 2, "png")
    assert house.empty()


@pytest.mark.parametrize(
    ("asked", "steps", "shown"),
    [
        ({}, 8, "medium"),
        ({"quality": "auto"}, 8, "medium"),
        ({"quality": "low"}, 4, "low"),
        ({"quality": "standard"}, 8, "medium"),
        ({"quality": "hd"}, 12, "high"),
        ({"quality": "auto", "steps": 5}, 5, "medium"),
    ],
)
def test_quality_is_a_number_of_steps(
    house: House, client: TestClient[Litestar], asked: dict[str, Any], steps: int, shown: str
) -> None:
    answer = _ask(client, **asked, size="auto", background="auto", stream=False, response_format="b64_json")
    assert answer.json()["quality"] == shown
    assert (house.given[0].steps, house.given[0].width) == (steps, 64)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"prompt": ""}, "prompt", "length >= 1"),
        ({"n": 4}, "n", "limit is 3"),
        ({"n": 0}, "n", ">= 1"),
        ({"size": "63x64"}, "size", "nearest below is 48x64"),
        ({"size": "1024x512"}, "size", "nearest of that shape is 720x352"),
        ({"size": "large"}, "size", "regex"),
        ({"steps": 13}, "steps", "limit is 12"),
        ({"steps": 3, "quality": "low"}, "quality", "one of them"),
        ({"quality": "xhigh"}, "quality", "xhigh"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"output_format": "svg"}, "output_format", "svg"),
        ({"output_compression": 50}, "output_compression", "jpeg and webp"),
        ({"background": "transparent"}, "background", "transparent"),
        ({"stream": True}, "stream", "True"),
        ({"style": "vivid"}, "style", "not a parameter"),
        ({"model": "tiny-i2v"}, "model", "starts from an image"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_there_is_a_job(
    house: House, client: TestClient[Litestar], body: dict[str, Any], param: str, says: str
) -> None:
    answer = _ask(client, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says.lower() in error["message"].lower()
    assert not house.working.is_set()


def test_an_unknown_model_and_another_content_type_have_their_status(client: TestClient[Litestar]) -> None:
    assert _ask(client, model="dall-e-3").status_code == 404
    form = client.post("/v1/images/generations", files={"prompt": (None, "a")})
    assert form.status_code == 415


@pytest.mark.parametrize(
    ("fault", "status", "code", "attempts"),
    [
        (InvalidRequestError("not this"), 400, "invalid_value", 1),
        (StorageFullError("no room"), 507, "storage_full", 1),
        (UnavailableError("too little memory", code="out_of_memory"), 503, "out_of_memory", 2),
        (RuntimeError("a bug"), 500, "internal_error", 2),
    ],
)
def test_what_fails_in_the_worker_is_the_answer(
    house: House, client: TestClient[Litestar], fault: Exception, status: int, code: str, attempts: int
) -> None:
    tried: list[int] = []

    def fail(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        tried.append(job.attempts)
        raise fault

    house.handler = fail
    answer = _ask(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert len(tried) == attempts
    assert house.empty()


def test_a_worker_that_dies_costs_time_and_not_the_images(house: House, client: TestClient[Litestar]) -> None:
    def die_once(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        house.handler = house.paint
        raise ConnectionError("as if it were killed")

    house.handler = die_once
    assert _ask(client).status_code == 200


def _endless(job: Job, context: JobContext) -> Mapping[str, Artifact]:
    while True:
        context.step(1)
        time.sleep(0.005)  # the time of a step


def test_what_takes_too_long_is_given_up_and_stopped(house: House, client: TestClient[Litestar]) -> None:
    house.handler = _endless
    answer = _ask(client, deadline_s=0.3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    house.handler = house.paint
    assert _ask(client).status_code == 200, "the worker is free again"
    assert house.empty()


def test_a_job_that_somebody_else_deletes_is_an_answer_too(house: House, client: TestClient[Litestar]) -> None:
    house.handler = _endless
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(_ask(client)))
    asking.start()
    assert house.working.wait(10)
    for key in house.store._redis.keys("tessera:job:image_*"):
        house.store._redis.delete(key)
    asking.join(20)
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (409, "cancelled")


def test_a_redis_that_is_gone_for_a_moment_is_waited_for(
    house: House, client: TestClient[Litestar], redis_server: Any
) -> None:
    go_on = threading.Event()

    def paint(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        assert go_on.wait(20)
        return house.paint(job, context)

    house.handler = paint
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(_ask(client)))
    asking.start()
    assert house.working.wait(10)
    redis_server.kill()
    go_on.set()
    redis_server.start()
    asking.join(20)
    assert answers[0].status_code == 200, answers[0].text


def test_a_key_with_too_many_unfinished_jobs_is_told_when_to_come_back(
    house: House, client: TestClient[Litestar]
) -> None:
    house.handler = _endless
    for _ in range(2):
        assert client.post("/v1/videos", json={"prompt": "a"}).status_code == 200
    answer = _ask(client)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
