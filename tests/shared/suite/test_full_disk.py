"""A full disk: jobs can still be read, changes are refused by its name, and work goes on when there is space again.

A limit of the size of files stands for the disk; the server gets the same kind of error from its writes.
"""

from __future__ import annotations

import asyncio
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import until, until_async

from tessera.errors import JobStoreFullError, NotFoundError, StorageFullError, UnavailableError
from tessera.jobs import disk
from tessera.jobs.store import AsyncJobStore
from tessera.settings.jobs import ArtifactSettings, JobSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.tree import Settings
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


def store_of(running: EmbeddedServer, disks: disk.JobDisks) -> AsyncJobStore:
    settings = JobSettings(max_queued_per_key=10_000)
    return AsyncJobStore(f"unix://{running.path}", timeout_s=2, settings=settings, disks=disks)


async def create(store: AsyncJobStore, name: str, size: int = 1) -> None:
    await store.create(name, kind="video", owner="me", queue="q", job_input=Given("x" * size))


def test_a_job_is_refused_before_the_disk_is_full(server: Callable[..., EmbeddedServer], tmp_path: Path) -> None:
    running = server(0)
    no_disk_has = 1 << 62

    async def scenario() -> None:
        free = store_of(running, disk.JobDisks(tmp_path / "redis", tmp_path / "artifacts", 1))
        await create(free, "before")
        for disks, kind, directory in (
            (disk.JobDisks(tmp_path / "redis", tmp_path / "artifacts", no_disk_has), JobStoreFullError, "redis"),
            (disk.JobDisks(None, tmp_path / "artifacts", no_disk_has), StorageFullError, "artifacts"),
        ):
            store = store_of(running, disks)
            with pytest.raises(kind) as refused:
                await create(store, "after")
            assert refused.value.status == 507
            assert refused.value.retry_after
            assert re.search(rf"{tmp_path}/{directory} has \d+ bytes free", refused.value.message)
            assert "delete old jobs" in refused.value.message
            assert (await store.get("before", kind="video", owner="me")).id == "before"
            with pytest.raises(NotFoundError):
                await store.get("after", kind="video", owner="me")
            await store.delete("before", kind="video", owner="me")
            await create(free, "before")
            await store.close()
        await free.close()

    asyncio.run(scenario())


def test_while_a_full_disk_keeps_redis_down_reads_say_the_disk(
    server: Callable[..., EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server(0)  # started with space: it ends itself at the first write that fails
    running.limit(DISK_BYTES)
    free = [1 << 40]
    monkeypatch.setattr(disk, "free_bytes", lambda _: free[0])

    async def scenario() -> None:
        store = store_of(running, disk.JobDisks(tmp_path / "redis", None, 1 << 20))

        async def create_until_it_ends() -> None:
            for number in range(200):
                await create(store, f"job{number}", 10_000)

        with pytest.raises(UnavailableError, match="does not answer"):
            await create_until_it_ends()
        running.process.wait(20)
        free[0] = 4096
        for read in (
            store.get("job0", kind="video", owner="me"),
            store.list(kind="video", owner="me", after=None, limit=5, order="asc"),
            store.ping(),
        ):
            with pytest.raises(JobStoreFullError, match=f"{tmp_path}/redis has 4096 bytes free"):
                await read
        free[0] = 1 << 40
        with pytest.raises(UnavailableError, match="does not answer"):
            await store.get("job0", kind="video", owner="me")
        await store.close()

    asyncio.run(scenario())


def test_a_disk_that_nobody_can_look_at_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> int:
        raise PermissionError("no")

    monkeypatch.setattr(disk, "free_bytes", denied)
    disk.JobDisks(tmp_path, tmp_path, 1 << 62).check()


def test_the_settings_choose_the_disks(tmp_path: Path) -> None:
    suite, jobs = SuiteSettings(data=str(tmp_path)), JobSettings(least_free_bytes=1 << 62)
    elsewhere, bucket = RedisSettings(url="redis://elsewhere"), ArtifactSettings(url="s3://bucket")
    with pytest.raises(JobStoreFullError):
        disk.job_disks(Settings(suite=suite, jobs=jobs, artifacts=bucket)).check()
    with pytest.raises(StorageFullError):
        disk.job_disks(Settings(suite=suite, jobs=jobs, redis=elsewhere)).check()
    disk.job_disks(Settings(suite=suite, jobs=jobs, redis=elsewhere, artifacts=bucket)).check()


@given(st.integers(0, 1 << 50))
def test_the_watch_looks_again_before_a_fast_disk_could_be_full(free: int) -> None:
    seconds = disk_watch.next_look_s(free)
    assert disk_watch.SOONEST_S <= seconds <= disk_watch.LOOK_EVERY_S
    left = free - embedded_redis.LEAST_FREE_BYTES
    if left >= disk_watch.SOONEST_S * disk_watch.FILL_BYTES_PER_S:
        assert seconds * disk_watch.FILL_BYTES_PER_S <= left


def test_with_space_on_the_disk_every_change_is_written_before_it_is_answered(
    server: Callable[..., EmbeddedServer],
) -> None:
    assert server(0).fsync() == "always"


def test_the_watch_lets_redis_live_on_a_full_disk_and_makes_it_safe_again(
    server: Callable[..., EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server(0)
    free = [1 << 40]
    monkeypatch.setattr(disk_watch, "free_bytes", lambda _: free[0])
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
