"""The job store over a real Redis: states, leases, fencing, limits, lists, and that no job is ever in two states."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from tessera.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    UnprocessableError,
)
from tessera.jobs.records import Lease, NotClaimed, WorkerInfo
from tessera.jobs.store import AsyncJobStore, Idempotency
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.wire.jobs import Artifact, Job, JobError
from tessera.wire.models import Card

SETTINGS = JobSettings(lease_s=30, reap_every_s=0.05, max_attempts=2, backoff_s=0, max_queued_per_key=5, keep_s=3600)
FILES = {"video": Artifact(key="a/1-video.mp4", content_type="video/mp4", bytes=3, sha256="0" * 64)}
ERROR = JobError(code="internal_error", message="it broke")


class Given(msgspec.Struct):
    prompt: str


class Stores:
    """Both sides of one store; the asynchronous one is called from here as if it were not."""

    def __init__(self, url: str, settings: JobSettings = SETTINGS) -> None:
        self.url, self.settings = url, settings
        self.worker = WorkerStore(url, timeout_s=2, settings=settings)
        self.redis = redis.Redis.from_url(url)

    def http(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            store = AsyncJobStore(self.url, timeout_s=2, settings=self.settings)
            try:
                return await getattr(store, method)(*arguments, **options)
            finally:
                await store.close()

        return asyncio.run(call())

    def create(self, job_id: str, *, owner: str = "me", **options: Any) -> Job:
        return self.http(
            "create", job_id, kind="video", owner=owner, queue="video.m", job_input=Given("a cat"), **options
        ).job

    def get(self, job_id: str, owner: str = "me") -> Job:
        return self.http("get", job_id, kind="video", owner=owner)

    def cancel(self, job_id: str, owner: str = "me") -> Job:
        return self.http("cancel", job_id, kind="video", owner=owner)

    def delete(self, job_id: str, owner: str = "me") -> None:
        self.http("delete", job_id, kind="video", owner=owner)

    def claim(self, job_id: str) -> Lease:
        lease = self.worker.claim(job_id, worker="w")
        assert isinstance(lease, Lease), lease
        return lease

    def end_lease(self, job_id: str) -> None:
        """As if `lease_s` had passed."""
        self.redis.zadd("tessera:jobs:leased", {job_id: 1})


@pytest.fixture
def stores(redis_server: Any) -> Iterator[Stores]:
    found = Stores(redis_server.url)
    yield found
    found.worker.close()
    found.redis.close()


def test_a_new_job_is_queued_with_what_it_was_given(stores: Stores) -> None:
    job = stores.create("a")
    assert (job.status, job.progress, job.attempts, job.error) == ("queued", 0, 0, None)
    assert msgspec.json.decode(stores.get("a").input, type=Given) == Given("a cat")
    assert abs(job.created_at - time.time()) < 5


def test_creating_the_same_id_again_after_a_lost_answer_changes_nothing(stores: Stores) -> None:
    stores.create("a")
    stores.claim("a")
    assert stores.create("a").status == "in_progress"
    assert stores.worker.counts().queued == 0


def test_another_owners_job_is_not_found_whatever_is_asked(stores: Stores) -> None:
    stores.create("a", owner="me")
    for method in ("get", "cancel", "delete"):
        with pytest.raises(NotFoundError):
            stores.http(method, "a", kind="video", owner="you")
    assert stores.http("list", kind="video", owner="you", after=None, limit=9, order="asc").jobs == []


def test_of_many_workers_that_hear_one_ring_exactly_one_gets_the_job(stores: Stores) -> None:
    stores.create("a")
    answers: list[Lease | NotClaimed] = []
    barrier = threading.Barrier(8)

    def claim() -> None:
        barrier.wait()
        answers.append(stores.worker.claim("a", worker=threading.current_thread().name))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Lease) for answer in answers) == 1
    assert {answer.reason for answer in answers if isinstance(answer, NotClaimed)} == {"busy"}


def test_a_stale_token_can_change_nothing(stores: Stores) -> None:
    stores.create("a")
    stale = stores.claim("a")
    stores.end_lease("a")
    fresh = stores.claim("a")
    assert fresh.token > stale.token
    assert stores.worker.renew(stale, progress=99) == "lost"
    assert stores.worker.complete(stale, FILES) == "lost"
    assert stores.worker.fail(stale, ERROR, again=True) == "lost"
    assert stores.worker.release(stale) == "lost"
    job = stores.get("a")
    assert (job.status, job.progress, job.attempts) == ("in_progress", 0, 2)
    assert stores.worker.complete(fresh, FILES) == "completed"
    assert stores.get("a").artifacts == FILES


def test_a_worker_that_comes_back_before_anybody_took_its_job_keeps_it(stores: Stores) -> None:
    stores.create("a")
    lease = stores.claim("a")
    stores.end_lease("a")
    assert [ring.job_id for ring in stores.worker.reap()] == ["a"]
    assert stores.get("a").status == "queued"
    assert stores.worker.renew(lease, progress=40) == "held"
    assert stores.get("a").status == "in_progress"
    assert isinstance(stores.worker.claim("a", worker="other"), NotClaimed)
    assert stores.worker.complete(lease, FILES) == "completed"


def test_completing_twice_after_a_lost_answer_is_completing_once(stores: Stores) -> None:
    stores.create("a")
    lease = stores.claim("a")
    assert stores.worker.complete(lease, FILES) == "completed"
    ended_at = stores.get("a").ended_at
    assert stores.worker.complete(lease, FILES) == "completed"
    assert stores.get("a").ended_at == ended_at


def test_progress_never_falls_within_an_attempt(stores: Stores) -> None:
    stores.create("a")
    lease = stores.claim("a")
    seen = []
    for progress in (10, 40, 20, 40, 90):
        stores.worker.renew(lease, progress=progress)
        seen.append(stores.get("a").progress)
    assert seen == [10, 40, 40, 40, 90]


def test_a_queued_job_is_cancelled_at_once_and_cannot_be_claimed(stores: Stores) -> None:
    stores.create("a")
    job = stores.cancel("a")
    assert (job.status, job.error and job.error.code) == ("cancelled", "cancelled")
    assert stores.worker.claim("a", worker="w") == NotClaimed("ended")


def test_a_running_job_is_told_to_cancel_and_ends_cancelled_whatever_the_worker_says_then(stores: Stores) -> None:
    for ending in ("complete", "fail", "release", "die"):
        stores.create(ending)
        lease = stores.claim(ending)
        assert stores.cancel(ending).cancel_requested
        assert stores.worker.renew(lease, progress=5) == "cancel"
        if ending == "complete":
            assert stores.worker.complete(lease, FILES) == "cancelled"
        elif ending == "fail":
            assert stores.worker.fail(lease, ERROR, again=True) == "cancelled"
        elif ending == "release":
            assert stores.worker.release(lease) == "cancelled"
        else:
            stores.end_lease(ending)
            assert stores.worker.reap() == []
        assert stores.get(ending).status == "cancelled"


def test_an_ended_job_cannot_be_cancelled(stores: Stores) -> None:
    stores.create("a")
    stores.worker.complete(stores.claim("a"), FILES)
    with pytest.raises(ConflictError, match="completed"):
        stores.cancel("a")


def test_deleting_a_running_job_stops_its_worker(stores: Stores) -> None:
    stores.create("a")
    lease = stores.claim("a")
    stores.delete("a")
    assert stores.worker.renew(lease, progress=50) == "lost"
    assert stores.worker.complete(lease, FILES) == "lost"
    with pytest.raises(NotFoundError):
        stores.get("a")
    assert stores.redis.keys("tessera:job*") == [b"tessera:jobs:flow:video.m"], "what is known of the queue stays"


def test_an_error_is_tried_again_until_the_attempts_are_used_up_and_then_kept(stores: Stores) -> None:
    stores.create("a")
    assert stores.worker.fail(stores.claim("a"), ERROR, again=True) == "queued"
    last = JobError(code="internal_error", message="it broke again")
    assert stores.worker.fail(stores.claim("a"), last, again=True) == "failed"
    job = stores.get("a")
    assert (job.status, job.error, job.attempts) == ("failed", last, 2)


def test_between_an_error_and_the_next_attempt_is_a_pause_that_doubles(redis_server: Any) -> None:
    settings = msgspec.structs.replace(SETTINGS, backoff_s=0.4, max_attempts=3)
    stores = Stores(redis_server.url, settings)
    stores.create("a")
    for pause in (0.4, 0.8):
        lease = stores.worker.claim_next("video.m", worker="w")
        assert isinstance(lease, Lease)
        failed = time.monotonic()
        assert stores.worker.fail(lease, ERROR, again=True) == "queued"
        assert stores.get("a").status == "queued"
        assert stores.worker.claim_next("video.m", worker="w") == NotClaimed("gone")
        assert stores.worker.reap() == []
        stores.create(f"other{pause}")
        assert isinstance(stores.worker.claim_next("video.m", worker="w"), Lease), "nobody else waits for it"
        while not stores.worker.reap():
            assert time.monotonic() < failed + 10
            time.sleep(0.01)
        assert time.monotonic() - failed >= pause
    lease = stores.worker.claim_next("video.m", worker="w")
    assert isinstance(lease, Lease)
    assert (lease.job.id, lease.job.attempts) == ("a", 3)
    assert stores.worker.fail(lease, ERROR, again=True) == "failed"
    stores.worker.close()
    stores.redis.close()


def test_a_paused_job_can_be_cancelled(redis_server: Any) -> None:
    stores = Stores(redis_server.url, msgspec.structs.replace(SETTINGS, backoff_s=60))
    stores.create("a")
    assert stores.worker.fail(stores.claim("a"), ERROR, again=True) == "queued"
    assert stores.cancel("a").status == "cancelled"
    assert stores.worker.claim_next("video.m", worker="w") == NotClaimed("gone")
    stores.worker.close()
    stores.redis.close()


def test_a_job_that_kills_its_workers_is_parked(stores: Stores) -> None:
    stores.create("a")
    for _ in range(SETTINGS.max_attempts):
        stores.claim("a")
        stores.end_lease("a")
    assert stores.worker.claim("a", worker="w") == NotClaimed("ended")
    job = stores.get("a")
    assert (job.status, job.error and job.error.code) == ("failed", "worker_died")


def test_a_job_given_back_is_free_at_once_and_the_attempt_does_not_count(stores: Stores) -> None:
    stores.create("a")
    for _ in range(5):
        lease = stores.claim("a")
        assert stores.worker.release(lease) == "queued"
        assert stores.worker.renew(lease, progress=1) == "lost"
    assert stores.claim("a").job.attempts == 1


def test_an_owner_may_have_so_many_unfinished_jobs_and_others_are_not_touched(stores: Stores) -> None:
    for number in range(SETTINGS.max_queued_per_key):
        stores.create(f"job{number}")
    with pytest.raises(OverloadedError, match="max_queued_per_key") as refused:
        stores.create("more")
    assert refused.value.retry_after
    stores.create("theirs", owner="you")
    stores.cancel("job0")
    stores.create("more")


def test_an_owner_with_too_many_jobs_is_told_when_the_first_of_them_may_end(stores: Stores) -> None:
    for number in range(SETTINGS.max_queued_per_key):
        stores.create(f"job{number}")
    stores.claim("job0")
    stores.redis.hset("tessera:jobs:flow:video.m", "seconds", "90")  # a unit of cost of this queue has taken so long
    with pytest.raises(OverloadedError) as refused:
        stores.create("more")
    assert refused.value.retry_after == pytest.approx(90, abs=5)


def test_lists_page_in_both_orders_without_gaps_or_doubles(stores: Stores) -> None:
    made = [stores.create(name).id for name in ("c", "a", "e", "b", "d")]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen: list[str] = []
        more = True
        while more:
            after = seen[-1] if seen else None
            page = stores.http("list", kind="video", owner="me", after=after, limit=2, order=order)
            seen += [job.id for job in page.jobs]
            more = page.has_more
        assert seen == expected
    with pytest.raises(InvalidRequestError, match="after"):
        stores.http("list", kind="video", owner="me", after="unknown", limit=2, order="asc")


def test_an_idempotency_key_means_one_job_for_one_body(stores: Stores) -> None:
    first = stores.http(
        "create", "a", kind="video", owner="me", queue="q", job_input=Given("x"), idempotency=Idempotency("k", "h")
    )
    again = stores.http(
        "create", "b", kind="video", owner="me", queue="q", job_input=Given("x"), idempotency=Idempotency("k", "h")
    )
    assert (first.replayed, again.replayed, again.job.id) == (False, True, "a")
    with pytest.raises(UnprocessableError):
        stores.create("c", idempotency=Idempotency("k", "other"))
    assert stores.create("d", owner="you", idempotency=Idempotency("k", "other")).id == "d"


def test_a_ring_is_due_for_one_reaper_and_then_later_and_later(stores: Stores) -> None:
    stores.create("a")
    deadline = time.monotonic() + 5
    rings: list[str] = []
    gaps: list[float] = []
    last = time.monotonic()
    while len(rings) < 3 and time.monotonic() < deadline:
        began = time.monotonic()
        found = [ring.job_id for _ in range(2) for ring in stores.worker.reap()]
        assert len(found) <= 1
        if found:
            rings += found
            # From before the last ring to after this one: no less than between the two, however slow the machine is.
            gaps.append(time.monotonic() - last)
            last = began
        time.sleep(0.002)
    assert rings == ["a", "a", "a"]
    assert gaps[1] > SETTINGS.reap_every_s * 1.9
    assert gaps[2] > SETTINGS.reap_every_s * 3.9


def test_no_rings_are_added_to_a_queue_that_still_holds_one_for_each_job(stores: Stores) -> None:
    stores.create("a")
    stores.redis.rpush("tessera:celery:video.m", "a ring")
    stores.redis.zadd("tessera:jobs:queued", {"a": 1})
    assert stores.worker.reap() == []
    stores.redis.delete("tessera:celery:video.m")
    stores.redis.zadd("tessera:jobs:queued", {"a": 1})
    assert [(ring.job_id, ring.queue) for ring in stores.worker.reap()] == [("a", "video.m")]


def test_what_was_kept_long_enough_is_forgotten_and_nothing_else(redis_server: Any) -> None:
    stores = Stores(redis_server.url, JobSettings(keep_s=1))
    stores.create("old")
    stores.cancel("old")
    stores.create("new")
    deadline = time.monotonic() + 5
    expired: list[str] = []
    while not expired and time.monotonic() < deadline:
        expired = stores.worker.expire()
        time.sleep(0.02)
    assert expired == ["old"]
    assert stores.get("new").status == "queued"
    with pytest.raises(NotFoundError):
        stores.get("old")


def test_a_job_that_nobody_ever_takes_ends_too(redis_server: Any) -> None:
    stores = Stores(redis_server.url, JobSettings(keep_s=1, reap_every_s=0.01))
    stores.create("a")
    deadline = time.monotonic() + 5
    while stores.get("a").status == "queued" and time.monotonic() < deadline:
        stores.worker.reap()
        time.sleep(0.05)
    job = stores.get("a")
    assert (job.status, job.error and job.error.code) == ("failed", "expired")


def test_a_worker_is_seen_while_it_registers_and_not_after(stores: Stores) -> None:
    card = Card(id="m", family="f", tasks=["video"], source="s", parameters=1, licence="l")
    info = WorkerInfo(id="w", kind="video", queue="video.m", card=card, device="cpu", pid=1)
    stores.worker.register_worker(info, seconds=0.2)
    assert stores.http("workers") == [info]
    deadline = time.monotonic() + 5
    while stores.http("workers") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stores.http("workers") == []
    stores.worker.register_worker(info, seconds=60)
    stores.worker.remove_worker("w")
    assert stores.http("workers") == []


def test_jobs_survive_a_redis_that_is_killed_and_its_absence_is_told_fast(stores: Stores, redis_server: Any) -> None:
    stores.create("a")
    lease = stores.claim("a")
    redis_server.kill()
    started = time.monotonic()
    with pytest.raises(UnavailableError) as down:
        stores.get("a")
    with pytest.raises(UnavailableError):
        stores.worker.renew(lease, progress=1)
    assert time.monotonic() - started < 1
    assert str(redis_server.data) not in down.value.message
    redis_server.start()
    assert stores.get("a").status == "in_progress"
    assert stores.worker.complete(lease, FILES) == "completed"


def test_after_any_history_every_job_is_in_exactly_the_sets_of_its_state(stores: Stores) -> None:
    chance = random.Random(7)
    leases: list[Lease] = []
    names = [f"j{number}" for number in range(6)]
    for _ in range(400):
        name = chance.choice(names)
        action = chance.choice(["create", "claim", "claim", "renew", "complete", "fail", "release", "lapse", "reap"])
        action = chance.choice([action] * 6 + ["cancel", "delete"])
        try:
            if action == "create":
                stores.create(name)
            elif action == "cancel":
                stores.cancel(name)
            elif action == "delete":
                stores.delete(name)
            elif action == "claim":
                claimed = stores.worker.claim(name, worker="w")
                leases += [claimed] if isinstance(claimed, Lease) else []
            elif action == "lapse" and stores.redis.zscore("tessera:jobs:leased", name) is not None:
                stores.end_lease(name)
            elif action == "reap":
                stores.redis.zadd("tessera:jobs:queued", dict.fromkeys(names, 1), xx=True)
                stores.worker.reap()
            elif leases:
                lease = chance.choice(leases)
                if action == "renew":
                    stores.worker.renew(lease, progress=chance.randrange(100))
                elif action == "complete":
                    stores.worker.complete(lease, FILES)
                elif action == "fail":
                    stores.worker.fail(lease, ERROR, again=chance.random() < 0.5)
                elif action == "release":
                    stores.worker.release(lease)
        except (NotFoundError, ConflictError, OverloadedError):
            pass
        _check_integrity(stores.redis, names)


def _check_integrity(client: Any, names: list[str]) -> None:
    sets = {
        state: {member.decode() for member in client.zrange(f"tessera:jobs:{state}", 0, -1)}
        for state in ("queued", "leased", "ended")
    }
    unfinished = {member.decode() for member in client.smembers("tessera:jobs:unfinished:me")}
    listed = {member.decode() for member in client.zrange("tessera:jobs:index:video:me", 0, -1)}
    existing = set()
    for name in names:
        status = client.hget(f"tessera:job:{name}", "status")
        if status is None:
            continue
        existing.add(name)
        state = {b"queued": "queued", b"in_progress": "leased"}.get(status, "ended")
        assert {key for key, members in sets.items() if name in members} == {state}, (name, status, sets)
        assert (name in unfinished) == (state != "ended")
    assert listed == existing
    assert unfinished <= existing
    assert set().union(*sets.values()) <= existing


def test_a_redis_that_is_killed_under_load_forgets_nothing_that_it_has_answered(redis_server: Any) -> None:
    """With `appendfsync everysec` it does, now and then: a busy disk holds back writes that were answered."""
    settings = msgspec.structs.replace(SETTINGS, max_queued_per_key=10_000)
    accepted: list[str] = []
    many = asyncio.Event()

    async def create_until_it_dies(number: int) -> None:
        store = AsyncJobStore(redis_server.url, timeout_s=2, settings=settings)
        try:
            for count in range(10_000):
                job_id = f"j{number}-{count}"
                given = Given("a cat" * 100)
                await store.create(job_id, kind="video", owner=f"o{number}", queue="video.m", job_input=given)
                accepted.append(job_id)
                if len(accepted) == 60:
                    many.set()
        except UnavailableError:
            return
        finally:
            await store.close()

    async def load() -> None:
        clients = asyncio.gather(*(create_until_it_dies(number) for number in range(8)))
        await many.wait()
        await asyncio.to_thread(redis_server.kill)
        await clients

    asyncio.run(load())
    redis_server.start()
    client = redis.Redis.from_url(redis_server.url)
    try:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        assert [job_id for job_id in accepted if not client.exists(f"tessera:job:{job_id}")] == []
        assert set(accepted) <= {each.decode() for each in client.zrange("tessera:jobs:queued", 0, -1)}
    finally:
        client.close()
