"""A Redis that is there but refuses to serve is a Redis that is away: nothing dies of it, and work goes on after it."""

from __future__ import annotations

import time

import pytest
import redis

from tessera.errors import UnavailableError
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.registration import REGISTER_EVERY_S, WorkerRegistration
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.wire.models import Card

CARD = Card(id="films", family="Wan", tasks=["video"], source="test", parameters=1, licence="none")
INFO = WorkerInfo(id="w", kind="video", queue="q", card=CARD, device="cpu", pid=1)


@pytest.fixture
def operator(redis_server):
    """Who can change the server's mind."""
    client = redis.Redis.from_url(redis_server.url)
    client.ping()
    yield client
    client.close()


def registered(operator: redis.Redis) -> bool:
    return bool(operator.exists("tessera:worker:w"))


def test_a_worker_that_was_refused_for_a_while_is_seen_again(redis_server, operator):
    operator.config_set("min-replicas-to-write", 1)  # NOREPLICAS: it answers, but takes no writes
    store = WorkerStore(redis_server.url, timeout_s=2, settings=JobSettings())
    with pytest.raises(UnavailableError):
        store.register_worker(INFO, seconds=10)
    registration = WorkerRegistration(store, INFO)
    registration.start()
    time.sleep(REGISTER_EVERY_S * 0.5)  # by then the first attempt is over; a refused write leaves no trace to wait for
    assert not registered(operator)
    operator.config_set("min-replicas-to-write", 0)
    deadline = time.monotonic() + 10 * REGISTER_EVERY_S
    while not registered(operator):
        assert time.monotonic() < deadline, "the worker is not seen"
        time.sleep(0.05)
    registration.close()
    store.close()
