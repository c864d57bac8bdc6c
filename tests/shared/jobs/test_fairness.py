"""Whose turn it is: lengths and owners share a queue by cost, priorities order one owner's jobs, deadlines end them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tessera.jobs.records import Lease, NotClaimed, WorkerInfo
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Job
from tessera.wire.models import Card

SETTINGS = JobSettings(lease_s=30, reap_every_s=0.05, max_queued_per_key=500, short_s=10)
CARD = Card(id="m", family="f", tasks=["video"], source="s", parameters=1, licence="l")


class Queue:
    """A queue over a real Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.worker = WorkerStore(url, timeout_s=2, settings=SETTINGS)

    def http(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            store = AsyncJobStore(self.url, timeout_s=2, settings=SETTINGS)
            try:
                return await getattr(store, method)(*arguments, kind="video", **options)
            finally:
                await store.close()

        return asyncio.run(call())

    def add(self, name: str, *, owner: str = "me", **options: Any) -> Job:
        return self.http("create", name, owner=owner, queue="q", job_input=msgspec.Struct(), **options).job

    def get(self, name: str, owner: str = "me") -> Job:
        return self.http("get", name, owner=owner)

    def next(self, *, short_only: bool = False) -> Lease | None:
        claimed = self.worker.claim_next("q", worker="w", short_only=short_only)
        if isinstance(claimed, NotClaimed):
            assert claimed.reason == "gone"
            return None
        return claimed

    def order(self) -> list[str]:
        """The names of all that wait, as they are given out."""
        found = []
        while (lease := self.next()) is not None:
            found.append(lease.job.id)
        return found

    def learn(self, seconds: float) -> None:
        """Have the queue know that a unit of cost takes so long."""
        self.worker._redis.hset("tessera:jobs:flow:q", "seconds", seconds)


@pytest.fixture
def queue(redis_server: Any) -> Iterator[Queue]:
    found = Queue(redis_server.url)
    yield found
    found.worker.close()


def test_owners_take_turns_however_many_jobs_one_of_them_has(queue: Queue) -> None:
    for number in range(5):
        queue.add(f"many{number}", owner="many")
    queue.add("few0", owner="few")
    queue.add("few1", owner="few")
    order = queue.order()
    assert [set(order[:2]), set(order[2:4])] == [{"many0", "few0"}, {"many1", "few1"}]
    assert order[4:] == ["many2", "many3", "many4"]


def test_turns_are_by_cost_not_by_number(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"big{number}", owner="big", cost=4.0)
    for number in range(8):
        queue.add(f"small{number}", owner="small", cost=1.0)
    order = [name[:3] for name in queue.order()]
    assert order == ["big", *["sma"] * 4, "big", *["sma"] * 4, "big"]


def test_who_asks_one_by_one_does_not_get_ahead_of_who_waits(queue: Queue) -> None:
    for number in range(10):
        queue.add(f"waits{number}", owner="waits")
    served = []
    for number in range(8):
        queue.add(f"again{number}", owner="again")
        lease = queue.next()
        assert lease is not None
        served.append(lease.job.owner)
    assert Counter(served) == {"waits": 4, "again": 4}


def test_who_comes_late_is_not_owed_the_past(queue: Queue) -> None:
    for number in range(20):
        queue.add(f"old{number}", owner="old")
    for _ in range(10):
        queue.next()
    for number in range(6):
        queue.add(f"new{number}", owner="new")
    served = Counter(name[:3] for name in queue.order()[:8])
    assert abs(served["old"] - served["new"]) <= 2, "to one job"


def test_a_short_job_does_not_wait_behind_long_ones(queue: Queue) -> None:
    queue.learn(1.0)
    for number in range(6):
        queue.add(f"long{number}", owner=f"o{number}", cost=600.0)
    queue.add("short", owner="late", cost=2.0)
    assert queue.order()[:2] in (["long0", "short"], ["short", "long0"])


def test_long_jobs_get_their_half_beside_any_number_of_short_ones(queue: Queue) -> None:
    queue.learn(1.0)
    for number in range(100):
        queue.add(f"short{number}", cost=5.0)
    for number in range(2):
        queue.add(f"long{number}", cost=50.0)
    order = queue.order()
    assert order.index("long1") <= 25


def test_only_short_ones_are_given_to_who_wants_those(queue: Queue) -> None:
    queue.learn(1.0)
    queue.add("long", cost=100.0)
    assert queue.next(short_only=True) is None
    queue.add("short", cost=1.0)
    lease = queue.next(short_only=True)
    assert lease is not None
    assert (lease.job.id, lease.short) == ("short", True)
    lease = queue.next()
    assert lease is not None
    assert (lease.job.id, lease.short) == ("long", False)


def test_an_owners_priorities_order_its_own_jobs_and_nobody_elses(queue: Queue) -> None:
    queue.add("later", priority=9)
    queue.add("sooner", priority=1)
    queue.add("also sooner", priority=1)
    queue.add("theirs", owner="you", priority=100)
    assert queue.order() == ["sooner", "theirs", "also sooner", "later"]


def test_a_job_given_back_is_next_among_its_owners(queue: Queue) -> None:
    for name in "abc":
        queue.add(name)
    lease = queue.next()
    assert lease is not None
    assert queue.worker.release(lease) == "queued"
    assert queue.order() == ["a", "b", "c"]


def test_a_cancelled_or_deleted_job_is_not_given_out(queue: Queue) -> None:
    for name in "abcd":
        queue.add(name)
    queue.http("cancel", "a", owner="me")
    queue.http("delete", "c", owner="me")
    assert queue.order() == ["b", "d"]


def test_a_job_whose_deadline_is_over_fails_whether_somebody_asks_or_only_the_reaper_looks(queue: Queue) -> None:
    queue.add("asked", deadline_s=0.05)
    queue.add("fine", deadline_s=3600)
    time.sleep(0.1)  # the deadline passes by Redis' clock, which announces nothing
    assert queue.order() == ["fine"]
    queue.add("looked at", deadline_s=0.05)
    time.sleep(0.1)  # as above
    queue.worker.reap()
    for name in ("asked", "looked at"):
        job = queue.get(name)
        assert (job.status, job.error and job.error.code) == ("failed", "deadline_exceeded")
    assert queue.worker._redis.zcard("tessera:jobs:deadlines") == 1


def test_nothing_is_left_behind_when_nobody_waits(queue: Queue) -> None:
    chance = random.Random(3)
    names = [f"j{number}" for number in range(40)]
    for name in names:
        queue.add(name, owner=f"o{chance.randrange(4)}", cost=chance.random(), priority=chance.randrange(3))
    for _ in range(10):
        lease = queue.next()
        assert lease is not None
        queue.worker.release(lease)
    assert sorted(queue.order()) == sorted(names)
    left = [key.decode() for key in queue.worker._redis.scan_iter("tessera:jobs:*")]
    assert not [key for key in left if "next" in key or "waiting" in key or "tags" in key]
    entered, gone = queue.worker._redis.hmget("tessera:jobs:flow:q", "entered", "left")
    assert float(entered) == pytest.approx(float(gone))


def test_a_job_that_no_queue_knows_of_is_found_by_the_reaper(queue: Queue) -> None:
    queue.add("old")
    for key in queue.worker._redis.scan_iter("tessera:jobs:*q*"):
        if b"next" in key or b"waiting" in key or b"tags" in key or b"flow" in key:
            queue.worker._redis.delete(key)
    queue.worker._redis.hdel("tessera:job:old", "class", "cost", "priority", "place")
    assert queue.next() is None
    deadline = time.monotonic() + 10
    while not (rings := queue.worker.reap()):  # the ring is due by Redis' clock, which announces nothing
        assert time.monotonic() < deadline, "nobody was rung for"
        time.sleep(0.01)
    assert [ring.job_id for ring in rings] == ["old"]
    assert queue.order() == ["old"]


def test_times_are_estimated_from_what_others_took(queue: Queue) -> None:
    assert queue.add("first", cost=2.0).estimated_start_at is None
    info = WorkerInfo(id="w", kind="video", queue="q", card=CARD, device="cpu", pid=1, slots=2)
    queue.worker.register_worker(info, seconds=60)
    lease = queue.next()
    assert lease is not None
    time.sleep(0.2)  # the time that the job takes, which is what is measured
    assert queue.worker.complete(lease, {}) == "completed"
    unit_s = float(queue.worker._redis.hget("tessera:jobs:flow:q", "seconds") or 0)
    assert 0.1 <= unit_s <= 5
    queue.learn(3.0)
    now = time.time()
    queue.add("a", cost=4.0)
    queue.add("b", cost=1.0)
    second, third = queue.get("a"), queue.get("b")
    assert second.estimated_start_at == pytest.approx(now, abs=2)
    assert second.estimated_end_at == pytest.approx(now + 12, abs=2)
    assert third.estimated_start_at == pytest.approx(now + 6, abs=2)
    running = queue.next()
    assert running is not None
    assert queue.get("a").estimated_end_at == pytest.approx(now + 12, abs=2)
    queue.worker.renew(running, progress=50)
    assert queue.get("a").estimated_end_at == pytest.approx(time.time(), abs=2), "its own pace says more"
    assert queue.get("first").estimated_end_at is None, "it has ended"


def test_small_jobs_say_little_about_large_ones(queue: Queue) -> None:
    info = WorkerInfo(id="w", kind="video", queue="q", card=CARD, device="cpu", pid=1, slots=1)
    queue.worker.register_worker(info, seconds=60)
    for number in range(3):
        queue.add(f"small{number}", cost=0.001)
        lease = queue.next()
        assert lease is not None
        time.sleep(0.02)  # the time that the job takes
        assert queue.worker.complete(lease, {}) == "completed"
    queue.add("large", cost=1.0)
    assert queue.get("large").estimated_end_at is None, "by the small ones it would be 20 seconds"
    large = queue.next()
    assert large is not None
    assert queue.worker.complete(large, {}) == "completed"
    began = time.time()
    queue.add("another", cost=1.0)
    ends = queue.get("another").estimated_end_at
    assert ends is not None
    assert ends - began < 3, "nearly all of the cost that was timed was the large one's"
