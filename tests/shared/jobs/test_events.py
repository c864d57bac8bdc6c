"""What happened to a job, as a stream: whole, in order, to its end, and again from where a client was."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient
from prometheus_client import CollectorRegistry

from tessera.api.mounting import mount_videos
from tessera.errors import NotFoundError
from tessera.jobs import event_subscription
from tessera.jobs.records import JobEvent, Lease
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.web.app import build_app
from tessera.wire.jobs import JobError
from tessera.wire.models import Card

pytestmark = pytest.mark.anyio
SETTINGS = JobSettings(lease_s=0.05, reap_every_s=0.01, max_attempts=2, backoff_s=0)
ERROR = JobError(code="internal_error", message="it broke")
CARD = Card(id="m", family="F", tasks=["video"], source="s", parameters=1, licence="l", sizes=["64x64"], fps=4)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.01)


class Given(msgspec.Struct):
    prompt: str


@contextlib.asynccontextmanager
async def stores(redis_server: Any) -> AsyncIterator[tuple[AsyncJobStore, WorkerStore]]:
    asked = AsyncJobStore(redis_server.url, timeout_s=2, settings=SETTINGS)
    worker = WorkerStore(redis_server.url, timeout_s=2, settings=SETTINGS)
    try:
        await asked.create("j", kind="video", owner="me", queue="q", job_input=Given("a cat"))
        yield asked, worker
    finally:
        await asked.close()
        worker.close()


def claimed(worker: WorkerStore) -> Lease:
    lease = worker.claim("j", worker="w")
    assert isinstance(lease, Lease)
    return lease


async def watched(store: AsyncJobStore, after: str = "") -> list[JobEvent]:
    return [event async for event, _ in store.events("j", kind="video", owner="me", after=after)]


def told(events: list[JobEvent]) -> list[tuple[str, int, int]]:
    return [(event.name, event.progress, event.attempts) for event in events]


WHOLE = [("queued", 0, 0), ("in_progress", 0, 1), ("progress", 30, 1), ("progress", 60, 1), ("completed", 100, 1)]


def work(worker: WorkerStore) -> None:
    lease = claimed(worker)
    for progress in (30, 30, 20, 60):  # what is no step forward is no event
        worker.renew(lease, progress=progress)
    worker.complete(lease, {})


async def test_a_watcher_sees_what_was_and_what_comes(redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_subscription, "LOOK_EVERY_S", 20.0)  # so that only the wake-up can be what shows it
    async with stores(redis_server) as (store, worker):
        early = asyncio.create_task(watched(store))

        async def listening() -> bool:
            return bool((await store._redis.pubsub_numsub(event_subscription.CHANNEL))[0][1])

        await until(listening)
        await asyncio.to_thread(work, worker)
        async with asyncio.timeout(10):
            assert told(await early) == told(await watched(store)) == WHOLE
        assert store._subscription._woken == {}


async def test_it_goes_on_behind_the_last_event_that_was_seen(redis_server: Any) -> None:
    async with stores(redis_server) as (store, worker):
        work(worker)
        events = await watched(store)
        for index, event in enumerate(events):
            assert await watched(store, event.id) == events[index + 1 :]


async def test_another_attempt_a_failure_and_a_cancel_are_told(redis_server: Any) -> None:
    async with stores(redis_server) as (store, worker):
        claimed(worker)
        await asyncio.sleep(0.06)  # the lease of 0.05 s runs out by Redis' clock, which announces nothing
        worker.reap()
        assert worker.fail(claimed(worker), ERROR, again=True) == "failed"
        names = [event.name for event in await watched(store)]
        assert names == ["queued", "in_progress", "queued", "in_progress", "failed"]
        assert (await watched(store))[-1].error == ERROR
        await store.create("c", kind="video", owner="me", queue="q", job_input=Given("a dog"))
        await store.cancel("c", kind="video", owner="me")
        events = [event.name async for event, _ in store.events("c", kind="video", owner="me")]
        assert events == ["queued", "cancelled"]


async def test_a_deleted_job_ends_its_watchers_and_others_see_nothing(redis_server: Any) -> None:
    async with stores(redis_server) as (store, _):
        seen: list[JobEvent] = []

        async def watch() -> list[JobEvent]:
            async for event, _ in store.events("j", kind="video", owner="me"):
                seen.append(event)
            return seen

        async def has_seen_the_first() -> bool:
            return bool(seen)

        watcher = asyncio.create_task(watch())
        await until(has_seen_the_first)
        await store.delete("j", kind="video", owner="me")
        async with asyncio.timeout(10):
            assert told(await watcher) == WHOLE[:1]
        with pytest.raises(NotFoundError):
            await watched(store)
        await store.create("k", kind="video", owner="me", queue="q", job_input=Given("a cat"))
        with pytest.raises(NotFoundError):
            async for _ in store.events("k", kind="video", owner="you"):
                pass
        assert await store._redis.keys("tessera:job:j*") == []


async def test_a_redis_that_was_killed_loses_no_event(redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher's own connection ends with an error that says so; coming again with the last id shows the rest."""
    monkeypatch.setattr(event_subscription, "LOOK_EVERY_S", 0.1)
    async with stores(redis_server) as (store, worker):
        seen: list[JobEvent] = []

        async def watch() -> None:
            async for event, _ in store.events("j", kind="video", owner="me", after=seen[-1].id if seen else ""):
                seen.append(event)

        watcher = asyncio.create_task(watch())
        lease = claimed(worker)
        worker.renew(lease, progress=30)

        async def begun() -> bool:
            return len(seen) >= 3

        await until(begun)
        await store._redis.execute_command("WAITAOF", 1, 0, 5000)  # what is not yet on its disk dies with it
        redis_server.kill()
        await asyncio.gather(watcher, return_exceptions=True)
        redis_server.start()
        worker.renew(lease, progress=60)
        worker.complete(lease, {})
        async with asyncio.timeout(10):
            await watch()
        assert told(seen) == WHOLE


@pytest.fixture
def client(redis_server: Any) -> Any:
    settings = Settings(suite=SuiteSettings(data=str(redis_server.data)), jobs=SETTINGS)

    async def cards(_: str | None) -> Card:
        return CARD

    videos = mount_videos(settings, cards)
    app = build_app(
        "video",
        videos.route_handlers,
        ready=videos.ready,
        registry=CollectorRegistry(),
        description="",
        lifespan=videos.lifespan,
    )
    with TestClient(app) as found:
        yield found


def parsed(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if not fields:  # a comment
            continue
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_server_sent_events_show_the_video_as_it_was(redis_server: Any, client: Any) -> None:
    worker = WorkerStore(redis_server.url, timeout_s=2, settings=SETTINGS)
    video_id = client.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
    lease = worker.claim(video_id, worker="w")
    assert isinstance(lease, Lease)
    worker.renew(lease, progress=40)
    worker.fail(lease, ERROR, again=False)
    answer = client.get(f"/v1/videos/{video_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parsed(answer.text)
    assert [name for _, name, _ in events] == ["video.queued", "video.in_progress", "video.progress", "video.failed"]
    assert [(video["status"], video["progress"]) for *_, video in events] == [
        ("queued", 0),
        ("in_progress", 0),
        ("in_progress", 40),
        ("failed", 40),
    ]
    assert events[-1][2]["error"]["message"] == "it broke"
    assert events[0][2]["error"] is None
    rest = client.get(f"/v1/videos/{video_id}/events", headers={"Last-Event-ID": events[1][0]})
    assert parsed(rest.text) == events[2:]
    assert client.get(f"/v1/videos/{video_id}/events", headers={"Last-Event-ID": events[-1][0]}).text == ": ping\n\n"


def test_a_preview_is_an_event_with_a_picture_that_is_told_once(redis_server: Any, client: Any) -> None:
    worker = WorkerStore(redis_server.url, timeout_s=2, settings=SETTINGS)
    video_id = client.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
    lease = worker.claim(video_id, worker="w")
    assert isinstance(lease, Lease)
    worker.renew(lease, progress=40, preview=b"\xff\xd8\xff\x00jpeg")
    worker.renew(lease, progress=40)
    worker.complete(lease, {})
    assert worker.renew(lease, progress=50, preview=b"too late") == "lost"
    events = parsed(client.get(f"/v1/videos/{video_id}/events").text)
    names = ["queued", "in_progress", "progress", "preview", "completed"]
    assert [name for _, name, _ in events] == [f"video.{name}" for name in names]
    shown = events[3][2]
    assert (shown["id"], shown["object"], shown["progress"]) == (video_id, "video.preview", 40)
    assert base64.b64decode(shown["image_url"].removeprefix("data:image/jpeg;base64,")) == b"\xff\xd8\xff\x00jpeg"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("video_" + "0" * 32, {}, 404),
        ("nonsense", {}, 404),
        ("video_" + "0" * 32, {"Last-Event-ID": "first"}, 400),
    ],
)
def test_what_is_not_there_is_an_error_with_its_status(client: Any, path: str, headers: Any, status: int) -> None:
    answer = client.get(f"/v1/videos/{path}/events", headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
