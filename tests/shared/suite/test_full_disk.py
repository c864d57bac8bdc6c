"""A full disk: jobs can still be read, changes are refused by its name, and work goes on when there is space again.

A limit of the size of files stands for the disk; the server gets the same kind of error from its writes.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from tests.waiting import until, until_async

from tessera.errors import JobStoreFullError
from tessera.jobs.store import AsyncJobStore
from tessera.settings.jobs import JobSettings
from tessera.suite import disk_watch, embedded_redis

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
DISK_BYTES = 300_000


class Given(msgspec.Struct):
    text: str


class EmbeddedServer:
    """The embedded server, started as the suite starts it."""

    def __init__(self, data: Path, *, least_free: int) -> None:
        (data / "redis").mkdir()
        command = embedded_redis.command(data)
        command[command.index(str(embedded_redis.LEAST_FREE_BYTES))] = str(least_free)
        self.path = embedded_redis.socket_path(data)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(self.path.exists, what="the socket of Redis")
        self.client = redis.Redis(unix_socket_path=str(self.path))
        until(self._answers, what="an answer of Redis")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def limit(self, size: int | None) -> None:
        """Let files grow to `size` bytes at most, or without a limit."""
        limits = NO_LIMIT if size is None else (size, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)

    def fsync(self) -> str:
        return self.client.config_get("appendfsync")["appendfsync"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    started: list[EmbeddedServer] = []

    def start(least_free: int) -> EmbeddedServer:
        started.append(EmbeddedServer(tmp_path, least_free=least_free))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_on_a_full_disk_jobs_are_read_and_new_ones_refused_by_the_disks_name(
    server: Callable[..., EmbeddedServer],
) -> None:
    running = server(1 << 62)  # no disk has so much space: it is started as on a full one
    running.limit(DISK_BYTES)

    async def scenario() -> None:
        store = AsyncJobStore(f"unix://{running.path}", timeout_s=2, settings=JobSettings(max_queued_per_key=10_000))

        async def create(name: str) -> None:
            await store.create(name, kind="video", owner="me", queue="q", job_input=Given("x" * 10_000))

        async def create_until_refused() -> None:
            for number in range(200):
                await create(f"job{number}")

        with pytest.raises(JobStoreFullError, match="disk") as refused:
            await create_until_refused()
        assert (refused.value.status, refused.value.body().code) == (507, "job_store_full")
        assert "suite.data" in refused.value.message
        assert refused.value.retryable
        assert refused.value.retry_after
        assert (await store.get("job0", kind="video", owner="me")).id == "job0"
        assert (await store.list(kind="video", owner="me", after=None, limit=5, order="asc")).jobs[0].id == "job0"
        running.limit(None)

        async def has_space() -> bool:
            try:
                await create("later")
            except JobStoreFullError:
                return False
            return True

        while not await has_space():  # noqa: ASYNC110 - Redis tries its file again every second
            await asyncio.sleep(0.05)
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert running.process.poll() is None


def test_with_space_on_the_disk_every_change_is_written_before_it_is_answered(
    server: Callable[..., EmbeddedServer],
) -> None:
    assert server(0).fsync() == "always"


def test_the_watch_lets_redis_live_on_a_full_disk_and_makes_it_safe_again(
    server: Callable[..., EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server(0)
    free = [1 << 40]
    monkeypatch.setattr(disk_watch.host, "disk_free", lambda _: free[0])
    monkeypatch.setattr(disk_watch, "LOOK_EVERY_S", 0.01)
    said: list[str] = []

    async def scenario() -> None:
        watch = asyncio.create_task(disk_watch.watch_disk(tmp_path, lambda _, text: said.append(text)))
        free[0] = 1 << 20
        await until_async(lambda: running.fsync() == "everysec", what="Redis to be told")
        free[0] = 1 << 40
        await until_async(lambda: running.fsync() == "always", what="Redis to be told again")
        watch.cancel()

    asyncio.run(scenario())
    assert "nearly full" in said[0]
    assert str(tmp_path) in said[0]
