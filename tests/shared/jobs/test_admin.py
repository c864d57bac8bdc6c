"""`tessera jobs` over a real Redis: jobs of all owners, and what an operator can do about them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis

from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.records import Lease
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import SuiteSettings
from tessera.settings.tree import Settings
from tessera.wire.jobs import JobError

SETTINGS = JobSettings(lease_s=30, reap_every_s=0.05, max_attempts=2, backoff_s=0)
ERROR = JobError(code="out_of_memory", message="it broke")
Run = Callable[..., subprocess.CompletedProcess[str]]


class Given(msgspec.Struct):
    prompt: str


class House:
    def __init__(self, redis_server: Any) -> None:
        self.settings = Settings(suite=SuiteSettings(data=str(redis_server.data)), jobs=SETTINGS)
        self.worker = WorkerStore(redis_server.url, timeout_s=2, settings=SETTINGS)
        self.url = redis_server.url
        self.artifacts = DirectoryArtifacts(self.settings.artifacts_dir)

    def create(self, job_id: str, owner: str, prompt: str = "a cat") -> None:
        async def made() -> None:
            store = AsyncJobStore(self.url, timeout_s=2, settings=SETTINGS)
            await store.create(job_id, kind="video", owner=owner, queue="video.m", job_input=Given(prompt))
            await store.close()

        asyncio.run(made())

    def claim(self, job_id: str) -> Lease:
        lease = self.worker.claim(job_id, worker="w")
        assert isinstance(lease, Lease)
        return lease


@pytest.fixture
def house(redis_server: Any) -> Iterator[House]:
    found = House(redis_server)
    found.create("queued-one", "ann")
    found.create("running-one", "bob", prompt="a very " + "long " * 30 + "prompt")
    found.worker.renew(found.claim("running-one"), progress=40)
    found.create("broken-one", "ann")
    found.worker.fail(found.claim("broken-one"), ERROR, again=False)
    found.artifacts.put("broken-one/input", b"picture", "image/png")
    yield found
    found.worker.close()


@pytest.fixture
def jobs(house: House) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tessera.cli", "jobs", *arguments, "--data", str(house.settings.suite.data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.slow
def test_the_list_has_the_jobs_of_all_owners_and_filters(jobs: Run) -> None:
    done = jobs("list")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["id", "status", "done", "tries", "age", "owner", "what"]
    assert [row.split()[0] for row in rows] == ["broken-one", "running-one", "queued-one"]
    assert "(out_of_memory)" in rows[0]
    assert "40 %" in rows[1]
    assert "…" in rows[1]
    assert all(len(row) < 150 for row in rows)
    assert [row.split()[0] for row in jobs("list", "--status", "queued").stdout.splitlines()[1:]] == ["queued-one"]
    assert jobs("list", "--status", "completed").stdout == "no job is completed\n"
    assert jobs("list", "--limit", "1").stdout.splitlines()[-1] == "… and 2 more"


@pytest.mark.slow
def test_one_is_shown_whole(jobs: Run) -> None:
    shown = json.loads(jobs("show", "broken-one").stdout)
    assert (shown["owner"], shown["status"], shown["error"]["message"]) == ("ann", "failed", "it broke")
    missing = jobs("show", "nobody")
    assert (missing.returncode, "there is no job 'nobody'" in missing.stderr) == (1, True)


def test_cancelling_stops_what_has_not_ended(jobs: Run, house: House) -> None:
    done = jobs("cancel", "queued-one", "running-one", "broken-one")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "queued-one: cancelled",
        "running-one: will stop at its next step",
        "broken-one: broken-one is failed and cannot be cancelled any more",
    ]


@pytest.mark.slow
def test_a_failed_job_begins_again_with_all_its_attempts(jobs: Run, house: House) -> None:
    done = jobs("retry", "broken-one", "queued-one")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "broken-one: queued",
        "queued-one: queued-one is queued; only a failed or cancelled job can begin again",
    ]
    assert house.worker.rings("video.m") == 1, "a worker was told"
    lease = house.claim("broken-one")
    assert (lease.job.attempts, lease.job.error, lease.job.ended_at) == (1, None, None)
    assert house.worker.complete(lease, {}) == "completed"

    async def told() -> list[str]:
        store = AsyncJobStore(house.url, timeout_s=2, settings=SETTINGS)
        found = [event.name async for event, _ in store.events("broken-one", kind="video", owner="ann")]
        await store.close()
        return found

    assert asyncio.run(told()) == ["queued", "in_progress", "failed", "queued", "in_progress", "completed"]


@pytest.mark.slow
def test_purging_forgets_records_and_removes_files(jobs: Run, house: House) -> None:
    assert jobs("purge", "--status", "failed", "--older-than", "1").stdout == "nothing to purge\n"
    assert jobs("purge", "--status", "failed").stdout == "broken-one: forgotten\n"
    assert jobs("purge", "running-one").stdout == "running-one: forgotten\n"
    assert not list((house.settings.artifacts_dir / "broken-one").glob("*"))
    left = redis.Redis.from_url(house.url).keys("tessera:job:*")
    assert sorted(left) == [b"tessera:job:queued-one", b"tessera:job:queued-one:events"]
    assert house.worker.renew(Lease(house.claim("queued-one").job, 1), progress=1) == "held"


def test_a_redis_that_is_away_is_said(jobs: Run, redis_server: Any) -> None:
    redis_server.kill()
    done = jobs("list")
    assert done.returncode == 1
    assert "Redis" in done.stderr
    assert "Traceback" not in done.stderr
