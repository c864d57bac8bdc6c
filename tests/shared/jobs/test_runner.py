"""Runner and reaper over a real Redis: work is done once, stops when it must, and is never lost."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.errors import InvalidRequestError, NotFoundError, UnavailableError
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.reaper import Reaper
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.worker.runner import JobContext, JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Artifact, Job

SETTINGS = JobSettings(lease_s=0.6, reap_every_s=0.05, max_attempts=2, backoff_s=0, keep_s=3600)
DEADLINE_S = 15.0


class Given(msgspec.Struct):
    steps: int


class ListBell:
    """Remembers rings; can be broken."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.broken = False
        self.refused = threading.Event()

    def ring(self, job_id: str, queue: str) -> None:
        if self.broken:
            self.refused.set()
            raise UnavailableError("no bell")
        assert queue == "q"
        self.rings.append(job_id)


class House:
    """A store, an artifact directory and a bell; makes runners with a handler."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.store = WorkerStore(url, timeout_s=2, settings=SETTINGS)
        self.artifacts = DirectoryArtifacts(directory)
        self.bell = ListBell()

    def http(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            store = AsyncJobStore(self.url, timeout_s=2, settings=SETTINGS)
            try:
                return await getattr(store, method)(*arguments, kind="video", owner="me", **options)
            finally:
                await store.close()

        return asyncio.run(call())

    def create(self, job_id: str = "a", steps: int = 3, **options: Any) -> None:
        self.http("create", job_id, queue="q", job_input=Given(steps), **options)

    def get(self, job_id: str = "a") -> Job:
        return self.http("get", job_id)

    def runner(self, handler: Callable[[Job, JobContext], Mapping[str, Artifact]]) -> JobRunner:
        return JobRunner(self.store, self.artifacts, self.bell, {"video": handler}, worker="w", queue="q")

    def writes(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """A handler that steps and stores a file."""
        steps = msgspec.json.decode(job.input, type=Given).steps
        for step in range(steps):
            context.step(100 * step // steps)
        return {"video": self.artifacts.put(context.key("video.mp4"), b"clip", "video/mp4")}


class Stepper:
    """A handler that steps until it is stopped, and tells how far it came."""

    def __init__(self) -> None:
        self.steps = 0
        self.began = threading.Event()

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        while True:
            context.step(min(self.steps, 99))
            self.steps += 1
            self.began.set()
            time.sleep(0.01)  # the time of a step


@pytest.fixture
def house(redis_server: Any) -> Iterator[House]:
    found = House(redis_server.url, redis_server.data / "artifacts")
    yield found
    found.store.close()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_job_is_done_and_its_files_are_those_of_the_record(house: House) -> None:
    house.create()
    assert house.runner(house.writes).run("a")[0] == "completed"
    job = house.get()
    assert (job.status, job.progress) == ("completed", 100)
    with house.artifacts.open(job.artifacts["video"].key) as file:
        assert file.read() == b"clip"
    assert house.runner(house.writes).run("a") == ["gone"]


def test_a_cancelled_job_stops_within_a_step_and_leaves_no_files(house: House) -> None:
    house.create()
    stepper = Stepper()

    def writes_first(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        house.artifacts.put(context.key("early"), b"x", "text/plain")
        return stepper(job, context)

    thread, results = in_thread(lambda: house.runner(writes_first).run("a")[0])
    stepper.began.wait(DEADLINE_S)
    house.http("cancel", "a")
    at_cancel = stepper.steps
    thread.join(DEADLINE_S)
    assert results == ["cancelled"]
    assert stepper.steps - at_cancel <= 3
    assert house.get().status == "cancelled"
    assert not (house.artifacts.directory / "a").exists()


def test_deleting_a_job_stops_its_worker_and_leaves_no_files(house: House) -> None:
    house.create()
    stepper = Stepper()
    thread, results = in_thread(lambda: house.runner(stepper).run("a")[0])
    stepper.began.wait(DEADLINE_S)
    house.http("delete", "a")
    thread.join(DEADLINE_S)
    assert results == ["lost"]
    with pytest.raises(NotFoundError):
        house.get()


def test_a_long_step_does_not_cost_the_lease(house: House) -> None:
    house.create()

    def slow(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        time.sleep(SETTINGS.lease_s * 2)  # one step, longer than the lease
        assert house.store.reap() == []
        return house.writes(job, context)

    assert house.runner(slow).run("a")[0] == "completed"
    assert house.get().attempts == 1


def test_draining_gives_the_job_back_rings_and_does_not_count_the_attempt(house: House) -> None:
    house.create()
    stepper = Stepper()
    runner = house.runner(stepper)
    thread, results = in_thread(lambda: runner.run("a")[0])
    stepper.began.wait(DEADLINE_S)
    runner.drain()
    thread.join(DEADLINE_S)
    assert results == ["queued"]
    assert house.bell.rings == ["a"]
    job = house.get()
    assert (job.status, job.attempts) == ("queued", 0)
    assert runner.run("a")[0] == "draining"
    assert house.runner(house.writes).run("a")[0] == "completed"


def test_the_next_attempt_learns_of_the_checkpoint_whether_the_worker_drained_or_died(house: House) -> None:
    house.create()
    seen: list[str | None] = []

    def keeps(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        seen.append(job.checkpoint)
        key = house.artifacts.put(context.key("checkpoint"), b"state", "application/octet-stream").key
        context.checkpointed(key)
        if len(seen) == 1:
            runner.drain()
            context.step(1)
        if len(seen) == 2:
            until(lambda: house.get().checkpoint == key)
            context.stop("lost")
            context.step(1)
        return {}

    runner = house.runner(keeps)
    assert runner.run("a")[0] == "queued"
    first = house.get().checkpoint
    assert first is not None
    assert house.runner(keeps).run("a")[0] == "lost"
    second = house.get().checkpoint
    until(lambda: house.store.reap() or house.get().status == "queued")
    assert house.runner(keeps).run("a")[0] == "completed"
    assert seen == [None, first, second]
    assert house.get().checkpoint is None
    assert not (house.artifacts.directory / str(second)).exists(), "the last ones go when the job has ended"


def test_a_fault_of_ours_is_tried_again_and_then_parked_with_its_error(house: House) -> None:
    house.create()

    def broken(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        raise RuntimeError("secret detail")

    assert house.runner(broken).run("a") == ["queued", "failed", "gone"]
    assert house.bell.rings == ["a"]
    job = house.get()
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.code == "internal_error"
    assert "secret" not in job.error.message


def test_an_error_that_trying_again_cannot_help_fails_the_job_at_once(house: House) -> None:
    house.create()

    def refuses(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        raise InvalidRequestError("`input_reference` is no image", param="input_reference")

    assert house.runner(refuses).run("a")[0] == "failed"
    job = house.get()
    assert job.attempts == 1
    assert job.error is not None
    assert job.error.message == "`input_reference` is no image"


def test_a_full_disk_fails_the_job_clearly_and_leaves_no_half_file(house: House) -> None:
    house.create()

    def fills(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        with house.artifacts.create(context.key("video.mp4"), "video/mp4") as pending:
            pending.path.unlink()
            pending.path.symlink_to("/dev/full")  # the kernel says ENOSPC to every write
            pending.path.write_bytes(b"clip")
        return {"video": pending.artifact}

    assert house.runner(fills).run("a")[0] == "failed"
    job = house.get()
    assert job.error is not None
    assert job.error.code == "storage_full"
    assert "room" in job.error.message
    left = [path for path in house.artifacts.directory.rglob("*") if not path.is_dir()]
    assert left == []


def test_a_worker_that_finds_itself_broken_takes_its_job_no_second_time(house: House) -> None:
    house.create()

    def breaks(_job: Job, _context: JobContext) -> Mapping[str, Artifact]:
        runner.drain()
        raise UnavailableError("the device failed")

    runner = house.runner(breaks)
    assert runner.run() == ["queued", "draining"]
    assert house.get().attempts == 1


def test_one_ring_is_enough_for_all_that_wait(house: House) -> None:
    for name in "abc":
        house.create(name)
    assert house.runner(house.writes).run("b") == ["completed", "completed", "completed", "gone"]
    assert [house.get(name).status for name in "abc"] == ["completed"] * 3


def test_a_slot_is_kept_for_short_jobs(house: House) -> None:
    house.create("known")
    # The first job takes some time, from which the time of the others is estimated.
    house.runner(lambda *_: time.sleep(0.01) or {}).run("known")  # type: ignore[func-returns-value]
    for name in ("long1", "long2", "long3"):
        house.create(name, cost=1e6)
    began: list[str] = []
    go_on = threading.Event()

    def waits(job: Job, _: JobContext) -> Mapping[str, Artifact]:
        began.append(job.id)
        if job.id.startswith("long"):
            assert go_on.wait(DEADLINE_S)
        return {}

    runner = JobRunner(house.store, house.artifacts, house.bell, {"video": waits}, worker="w", queue="q", slots=3)
    threads = [in_thread(runner.run)[0] for _ in range(2)]
    until(lambda: len(began) == 2)
    assert runner.run() == ["gone"], "the third slot is not for a third long one"
    house.create("short")
    assert runner.run() == ["completed", "gone"]
    assert (sorted(began[:2]), began[2:]) == (["long1", "long2"], ["short"])
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(began) == ["long1", "long2", "long3", "short"]


def test_a_job_that_runs_past_its_deadline_is_stopped_and_says_so(house: House) -> None:
    house.create(deadline_s=0.3)
    stepper = Stepper()
    assert house.runner(stepper).run()[0] == "failed"
    job = house.get()
    assert (job.status, job.error and job.error.code) == ("failed", "deadline_exceeded")


def test_work_goes_on_while_redis_is_away_and_its_result_is_not_lost(house: House, redis_server: Any) -> None:
    house.create()
    started, go_on = threading.Event(), threading.Event()

    def waits(job: Job, context: JobContext) -> Mapping[str, Artifact]:
        started.set()
        assert go_on.wait(DEADLINE_S)
        return house.writes(job, context)

    thread, results = in_thread(lambda: house.runner(waits).run("a")[0])
    assert started.wait(DEADLINE_S)
    redis_server.kill()
    go_on.set()
    time.sleep(SETTINGS.lease_s * 1.5)  # Redis is down for longer than the lease
    assert thread.is_alive()
    redis_server.start()
    thread.join(DEADLINE_S)
    assert results == ["completed"]
    job = house.get()
    assert (job.status, job.attempts) == ("completed", 1)


def test_a_lost_worker_s_job_is_done_by_another_and_the_first_ones_late_result_is_refused(house: House) -> None:
    house.create()
    lease = house.store.claim("a", worker="dead")
    reaper = Reaper(house.store, house.artifacts, house.bell)
    reaper.start()
    until(lambda: "a" in house.bell.rings)
    reaper.close()
    assert house.runner(house.writes).run("a")[0] == "completed"
    assert house.store.complete(lease, {}) == "lost"  # type: ignore[arg-type]
    assert house.get().artifacts != {}
    assert house.get().attempts == 2


def test_a_record_that_nobody_rang_for_is_rung_for_by_the_reaper_even_after_its_bell_was_broken(house: House) -> None:
    house.create()
    house.bell.broken = True
    reaper = Reaper(house.store, house.artifacts, house.bell)
    reaper.start()
    assert house.bell.refused.wait(DEADLINE_S)
    house.bell.broken = False
    until(lambda: house.bell.rings == ["a"])
    reaper.close()


def test_several_reapers_at_once_give_each_due_ring_once(house: House) -> None:
    for number in range(20):
        house.create(f"j{number}")
    time.sleep(SETTINGS.reap_every_s)  # the rings are due by Redis' clock; a look before that would take some
    reapers = [Reaper(house.store, house.artifacts, house.bell) for _ in range(4)]
    threads = [threading.Thread(target=reaper.look) for reaper in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(house.bell.rings) == sorted(f"j{number}" for number in range(20))


def test_files_go_with_their_record_and_strangers_only_when_they_are_old(redis_server: Any, tmp_path: Path) -> None:
    settings = JobSettings(keep_s=1, reap_every_s=0.05)
    store = WorkerStore(redis_server.url, timeout_s=2, settings=settings)
    artifacts = DirectoryArtifacts(tmp_path)
    house = House(redis_server.url, tmp_path)
    house.store = store
    house.create()
    assert house.runner(house.writes).run("a")[0] == "completed"
    artifacts.put("stranger/video.mp4", b"x", "video/mp4")
    reaper = Reaper(store, artifacts, house.bell)
    reaper.start()
    until(lambda: not (tmp_path / "a").exists())
    reaper.close()
    reaper.remove_stale()
    assert (tmp_path / "stranger").exists()
    long_ago = time.time() - 10 * 24 * 3600
    for path in (tmp_path / "stranger" / "video.mp4", tmp_path / "stranger"):
        os.utime(path, (long_ago, long_ago))
    reaper.remove_stale()
    assert not (tmp_path / "stranger").exists()
