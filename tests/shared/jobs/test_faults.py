"""What jobs survive, with real processes and a real Redis: each fault injected, and then the operation log is checked.

The long run of this is `python -m tests.shared.jobs.job_checker --jobs 30 --seconds 60`.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.conftest import RedisServer
from tests.shared.jobs.cutting_proxy import CuttingProxy
from tests.shared.jobs.job_checker import check, rampage
from tests.shared.jobs.job_stage import STEPS_BETWEEN_CHECKPOINTS, Stage
from tests.shared.jobs.s3_server import S3Server

from tessera.jobs.connection import RING_PREFIX

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEASE_S = 1.5


@pytest.fixture(scope="module")
def house() -> Iterator[Stage]:
    """One Redis and one server for all tests but the last, which kills them."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="tessera-")))
    server.start()
    found = Stage(server)
    found.serve()
    yield found
    found.close()
    server.kill()
    shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture
def stage(house: Stage) -> Iterator[Stage]:
    yield house
    house.clear()


@pytest.fixture
def proxy(stage: Stage) -> Iterator[CuttingProxy]:
    found = CuttingProxy(stage.redis.url.removeprefix("unix://"))
    yield found
    found.close()


def _first(stage: Stage, video_id: str) -> int:
    return stage.operations(video_id, "begin")[0]["pid"]


def test_a_frozen_worker_that_wakes_after_its_lease_publishes_nothing(stage: Stage) -> None:
    stage.work()
    stage.ready()
    video_id = stage.create(steps=40)
    stage.stepping(video_id, steps=10)
    frozen = _first(stage, video_id)
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    stage.work()
    (video,) = stage.ended(video_id)
    assert video["status"] == "completed"
    assert time.monotonic() - began > LEASE_S / 2, "not before the lease was over"
    content = stage.http.get(f"/v1/videos/{video_id}/content").content
    woken = time.monotonic()
    os.kill(frozen, signal.SIGCONT)
    stage.until(lambda: [each for each in stage.operations(video_id, "stopped") if each["pid"] == frozen], "it to stop")
    later = [each for each in stage.operations(video_id, "step") if each["pid"] == frozen and each["at"] > woken]
    assert len(later) <= 2, "it goes on until it has asked for its lease"
    assert not [each for each in stage.operations(video_id, "stored") if each["pid"] == frozen]
    assert stage.http.get(f"/v1/videos/{video_id}/content").content == content
    check(stage, frozen=True)
    assert stage.ended(stage.create(steps=2))[0]["status"] == "completed", "it works on"


def test_a_worker_frozen_after_its_last_step_publishes_nothing_either(stage: Stage) -> None:
    stage.work()
    stage.ready()
    video_id = stage.create(steps=30)
    stage.stepping(video_id, steps=29)
    frozen = _first(stage, video_id)
    os.kill(frozen, signal.SIGSTOP)
    stage.work()
    (video,) = stage.ended(video_id)
    etag = stage.http.head(f"/v1/videos/{video_id}/content").headers["etag"]
    os.kill(frozen, signal.SIGCONT)
    asked = stage.create(steps=2)
    stage.ended(asked)
    stage.until(
        lambda: [each for each in stage.operations(video_id, "stopped", "stored") if each["pid"] == frozen], "its end"
    )
    assert (video["status"], stage.http.head(f"/v1/videos/{video_id}/content").headers["etag"]) == ("completed", etag)
    check(stage, frozen=True)


def test_a_line_to_redis_that_is_cut_again_and_again_costs_no_attempt(stage: Stage, proxy: CuttingProxy) -> None:
    stage.work(redis_url=f"redis://127.0.0.1:{proxy.port}")
    stage.ready()
    video_id = stage.create(steps=40)
    for steps in (2, 8, 14, 20, 26):
        stage.stepping(video_id, steps=steps)
        proxy.cut()
    (video,) = stage.ended(video_id)
    assert video["status"] == "completed"
    assert len(stage.operations(video_id, "begin")) == 1
    assert check(stage)["repeated"] == 0


def test_a_slow_line_to_redis_costs_no_step(stage: Stage, proxy: CuttingProxy) -> None:
    stage.work(redis_url=f"redis://127.0.0.1:{proxy.port}")
    stage.ready()
    proxy.delay_s = 0.1
    video_id = stage.create(steps=40)
    assert stage.ended(video_id)[0]["status"] == "completed"
    steps = stage.operations(video_id, "stepped")
    assert len(steps) == 40
    assert steps[-1]["at"] - steps[0]["at"] < 40 * 0.1, "no step waits for an answer"
    check(stage)


def test_behind_a_line_that_is_half_open_another_worker_takes_over_and_only_its_result_is_seen(
    stage: Stage, proxy: CuttingProxy
) -> None:
    stage.work(redis_url=f"redis://127.0.0.1:{proxy.port}")
    stage.ready()
    video_id = stage.create(steps=120)
    stage.stepping(video_id, steps=6)
    cut_off = _first(stage, video_id)
    proxy.silent = True
    stage.work()
    stage.until(lambda: len(stage.operations(video_id, "begin")) == 2, "another attempt")
    proxy.silent = False
    proxy.cut()
    stage.until(
        lambda: [each for each in stage.operations(video_id, "stopped") if each["pid"] == cut_off], "the first to stop"
    )
    (video,) = stage.ended(video_id)
    assert video["status"] == "completed"
    assert {each["pid"] for each in stage.operations(video_id, "stored")}.isdisjoint({cut_off})
    check(stage, frozen=True)


def test_a_full_disk_fails_its_job_clearly_and_the_next_one_that_fits_is_done(stage: Stage) -> None:
    small = stage.work("--largest-file", "50000", "--result-bytes", "60000")
    stage.ready()
    video_id = stage.create(steps=6)
    (video,) = stage.ended(video_id)
    assert (video["status"], video["error"]["code"]) == ("failed", "storage_full")
    assert "make room" in video["error"]["message"]
    assert len(stage.operations(video_id, "begin")) == 1, "trying again would not help"
    files = [path for path in (stage.data / "artifacts" / video_id).rglob("*") if path.is_file()]
    files += (stage.data / "artifacts" / "_incoming").iterdir()
    assert files == [], "neither half a result nor a checkpoint"
    assert small.poll() is None, "the worker lives"
    small.send_signal(signal.SIGTERM)
    assert small.wait(30) == 0
    stage.work()
    assert stage.ended(stage.create(steps=2))[0]["status"] == "completed"


@pytest.mark.parametrize("damage", ["truncated", "removed"])
def test_a_checkpoint_that_cannot_be_read_costs_time_and_not_the_job(stage: Stage, damage: str) -> None:
    first = stage.work(step_s=0.1)
    stage.ready()
    video_id = stage.create(steps=12)
    stage.stepping(video_id, steps=STEPS_BETWEEN_CHECKPOINTS + 2)
    first.kill()
    first.wait()
    (checkpoint,) = (stage.data / "artifacts" / video_id).glob("*checkpoint*")
    if damage == "removed":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:20])
    stage.work(step_s=0.02)
    (video,) = stage.ended(video_id)
    assert video["status"] == "completed"
    assert [each["index"] for each in stage.operations(video_id, "begin")] == [0, 0]


def test_a_broker_flushed_while_jobs_are_queued_loses_none(stage: Stage) -> None:
    worker = stage.work()
    stage.ready()
    worker.kill()  # it is seen for some seconds yet, so jobs are accepted
    worker.wait()
    waiting = [stage.create(steps=2) for _ in range(5)]
    client = redis.Redis.from_url(stage.redis.url)
    rings = [key for key in client.keys(f"{RING_PREFIX}*") if client.type(key) == b"list"]
    assert rings, "they were rung for"
    client.delete(*client.keys(f"{RING_PREFIX}*"))
    client.close()
    stage.work()
    assert {video["status"] for video in stage.ended(*waiting)} == {"completed"}
    assert check(stage)["attempts"] == 5


def test_workers_whose_clocks_are_a_day_apart_do_each_job_once(stage: Stage) -> None:
    stage.work("--clock-skew-s", "86400")
    stage.work("--clock-skew-s", "-86400")
    stage.ready()
    stage.until(lambda: "tessera_jobs_video_workers 2.0" in stage.http.get("/metrics").text, "both workers")
    for _ in range(12):
        stage.create(steps=10)
    assert {video["status"] for video in stage.ended()} == {"completed"}
    found = check(stage)
    assert (found["attempts"], found["repeated"]) == (12, 0)
    assert len({operation["pid"] for operation in stage.all_operations()}) == 2, "both have worked"


def test_a_cancel_is_obeyed_in_every_state(stage: Stage) -> None:
    worker = stage.work(slots=1)
    stage.ready()

    running, queued = stage.create(steps=200), stage.create(steps=5)
    stage.stepping(running, steps=3)
    stage.cancel(queued)
    assert stage.get(queued)["status"] == "failed", "at once: nobody has it"
    stage.cancel(running)
    assert stage.ended(running)[0]["error"]["code"] == "cancelled"

    orphan = stage.create(steps=200)
    stage.stepping(orphan, steps=3)
    worker.kill()
    worker.wait()
    stage.cancel(orphan)
    assert stage.get(orphan)["status"] == "in_progress", "its lease still runs"
    worker = stage.work(slots=1)
    assert stage.ended(orphan)[0]["error"]["code"] == "cancelled"
    assert len(stage.operations(orphan, "begin")) == 1, "nobody began it again"

    given_back = stage.create(steps=200)
    stage.stepping(given_back, steps=3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert stage.get(given_back)["status"] == "queued"
    stage.cancel(given_back)
    assert stage.get(given_back)["error"]["code"] == "cancelled"

    stage.work()
    done = stage.create(steps=2)
    stage.ended(done)
    for ended in (done, running, queued):
        assert stage.http.post(f"/v1/videos/{ended}/cancel").status_code == 409
    assert check(stage)["cancelled"] == 4


def test_files_are_in_a_bucket_for_servers_and_workers_alike(redis_server: Any, tmp_path: Path) -> None:
    server = S3Server(tmp_path / "log")
    server.client.create_bucket(Bucket="films")
    stage = Stage(redis_server)
    place = server.settings("films")
    stage.environment |= {
        f"TESSERA_ARTIFACTS__{name.upper()}": str(getattr(place, name)) for name in place.__struct_fields__
    }
    try:
        stage.serve()
        first = stage.work()
        stage.ready()
        video_id = stage.create(steps=30)
        stage.stepping(video_id, steps=10)
        first.kill()
        stage.work("--result-bytes", "5000")
        assert stage.ended(video_id)[0]["status"] == "completed"
        assert check(stage)["repeated"] <= STEPS_BETWEEN_CHECKPOINTS, "it went on from a checkpoint in the bucket"
        path = f"/v1/videos/{video_id}/content"
        whole = stage.http.get(path).content
        part = stage.http.get(path, headers={"range": "bytes=4000-4099"})
        assert (len(whole), part.status_code, part.content) == (5000, 206, whole[4000:4100])
        assert server.keys("films") == [f"some/prefix/{video_id}/2-video.mp4"], "checkpoints are gone"
        assert stage.http.delete(f"/v1/videos/{video_id}").status_code == 200
        assert server.keys("films") == []
        assert not (stage.data / "artifacts").exists()
    finally:
        stage.close()
        server.close()


def test_kills_of_everything_at_random_moments_lose_and_double_nothing(redis_server: Any) -> None:
    stage = Stage(redis_server)
    try:
        found = rampage(stage, jobs=6, seconds=5, seed=time.time_ns())
    finally:
        stage.close()
    assert found["completed"] + found["cancelled"] == 6
