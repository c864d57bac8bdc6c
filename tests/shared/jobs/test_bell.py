"""The bell over a real Redis and a real Celery worker; and a worker whose consumer has stalled."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tessera.errors import UnavailableError
from tessera.jobs.artifacts.store import DirectoryArtifacts
from tessera.jobs.bell import broker_url, make_app, make_bell
from tessera.jobs.connection import RING_PREFIX
from tessera.jobs.store import AsyncJobStore
from tessera.jobs.worker.consumer_watchdog import ConsumerWatchdog
from tessera.jobs.worker.runner import JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.tree import Settings

LISTENER = """
import sys
from pathlib import Path
from celery import signals
from tessera.jobs.bell import listen, make_app
from tessera.settings.load import load

answers = iter(sys.argv[2].split(","))

def heard(job_id):
    with Path(sys.argv[1]).open("a") as file:
        file.write(job_id + "\\n")
    return [next(answers)]

app = make_app(load())
listen(app, heard)
app.Worker(pool="threads", concurrency=1, queues=["q"], without_mingle=True, without_gossip=True, quiet=True).start()
"""


def _settings(redis_server: Any) -> Settings:
    return Settings(suite=SuiteSettings(data=str(redis_server.data)))


def test_every_option_that_keeps_a_ring_safe_is_set(redis_server: Any) -> None:
    conf = make_app(_settings(redis_server)).conf
    timeouts = {
        conf.broker_transport_options["visibility_timeout"],
        conf.result_backend_transport_options["visibility_timeout"],
        conf.visibility_timeout,
    }
    assert len(timeouts) == 1
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert (conf.accept_content, conf.task_serializer, conf.task_ignore_result) == (["json"], "json", True)
    assert conf.broker_transport_options["socket_timeout"] == 5.0


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/1", "redis://host:6379/1"),
        ("rediss://:secret@host", "rediss://:secret@host"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
    ],
)
def test_a_redis_address_becomes_a_brokers(url: str, expected: str) -> None:
    assert broker_url(url) == expected


def test_a_ring_carries_the_id_and_nothing_else_and_is_where_the_reaper_counts_it(redis_server: Any) -> None:
    bell = make_bell(_settings(redis_server))
    bell.ring("video_1", "q")
    client = redis.Redis.from_url(redis_server.url)
    (message,) = client.lrange(f"{RING_PREFIX}q", 0, -1)
    assert b"video_1" in message
    assert len(message) < 1500
    bell.close()


def test_a_bell_without_redis_says_so_at_once_and_rings_again_later(redis_server: Any) -> None:
    bell = make_bell(_settings(redis_server))
    bell.ring("a", "q")
    redis_server.kill()
    started = time.monotonic()
    with pytest.raises(UnavailableError) as down:
        bell.ring("b", "q")
    assert time.monotonic() - started < 2
    assert str(redis_server.data) not in down.value.message
    redis_server.start()
    bell.ring("c", "q")
    assert redis.Redis.from_url(redis_server.url).llen(f"{RING_PREFIX}q") >= 1
    bell.close()


def test_a_silent_redis_counts_as_down_after_its_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        store = WorkerStore(url, timeout_s=0.3, settings=JobSettings())
        started = time.monotonic()
        with pytest.raises(UnavailableError):
            store.counts()
        assert time.monotonic() - started < 1.5
        bell = make_bell(Settings(redis=RedisSettings(url=url, timeout_s=0.3)))
        started = time.monotonic()
        with pytest.raises(UnavailableError):
            bell.ring("a", "q")
        assert time.monotonic() - started < 5
        bell.close()


def test_a_celery_worker_hears_rings_and_passes_on_what_a_draining_one_did_not_look_at(
    redis_server: Any, tmp_path: Path
) -> None:
    bell = make_bell(_settings(redis_server))
    heard = tmp_path / "heard"
    environment = {**os.environ, "TESSERA_SUITE__DATA": str(redis_server.data)}
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(heard), "completed,draining,completed"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        bell.ring("a", "q")
        _until(lambda: heard.exists() and heard.read_text().split() == ["a"])
        bell.ring("b", "q")
        _until(lambda: heard.read_text().split() == ["a", "b", "b"])
        process.terminate()
        assert process.wait(15) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        bell.close()


def test_an_idle_worker_that_hears_none_of_the_rings_that_wait_is_noticed(redis_server: Any) -> None:
    store = WorkerStore(redis_server.url, timeout_s=2, settings=JobSettings())
    bell = make_bell(_settings(redis_server))
    runner = JobRunner(store, DirectoryArtifacts(redis_server.data / "artifacts"), bell, {}, worker="w", queue="q")
    stalled = threading.Event()
    watchdog = ConsumerWatchdog(store, "q", runner, stalled_after_s=0.3, on_stalled=stalled.set)
    watchdog.start()
    assert not stalled.wait(0.6)
    bell.ring("a", "q")
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        assert runner.run("a") == ["gone"]
        time.sleep(0.02)
    assert not stalled.is_set()
    assert stalled.wait(5)
    watchdog.close()
    bell.close()
    store.close()


def test_the_asynchronous_side_never_blocks_longer_than_its_timeout() -> None:
    import asyncio

    async def ask(url: str) -> float:
        store = AsyncJobStore(url, timeout_s=0.3, settings=JobSettings())
        started = time.monotonic()
        with pytest.raises(UnavailableError):
            await store.ping()
        await store.close()
        return time.monotonic() - started

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert asyncio.run(ask(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")) < 1.5


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
