"""The supervisor's promises, with real processes that stand in for the services."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes import alive, free_port
from tests.waiting import until

STAND_IN = Path(__file__).with_name("suite_stand_in.py")
DEADLINE_S = 30.0


class Suite:
    """A supervisor over stand-ins, in a process of its own."""

    def __init__(self, directory: Path, hang_up_at: str | None = None, **modes: str) -> None:
        self.directory = directory
        self.hang_up_at = hang_up_at
        kinds = {"gateway": "gateway", "redis": "redis", "worker": "worker"}
        portless = ("redis", "worker")
        specs = [
            {"name": name, "kind": kinds.get(name, "service"), "mode": mode}
            | {"port": 0 if name in portless else free_port()}
            for name, mode in modes.items()
        ]
        self.process = subprocess.Popen(
            [sys.executable, str(STAND_IN), "suite", str(directory), json.dumps(specs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
            if self.hang_up_at is not None and self.hang_up_at in line:
                self.process.stdout.close()
                break
        self.lines.put(None)

    def until(self, text: str) -> str:
        """Everything said up to a line with `text`."""
        while True:
            line = self.lines.get(timeout=DEADLINE_S)
            assert line is not None, f"it ended without saying {text!r}:\n" + "\n".join(self.seen)
            self.seen.append(line)
            if text in line:
                return "\n".join(self.seen)

    def output(self) -> str:
        """Everything said, to the end."""
        while (line := self.lines.get(timeout=DEADLINE_S)) is not None:
            self.seen.append(line)
        return "\n".join(self.seen)

    def pids(self, name: str) -> list[int]:
        """A part's process and its engine; a worker has no port, so the suite may be ready before it wrote them."""
        written = self.directory / f"{name}.pids"
        until(written.is_file, DEADLINE_S, what=f"the start of {name}")
        return [int(word) for word in written.read_text().split()]

    def redis_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if "valkey" in Path(f"/proc/{pid}/cmdline").read_text())

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        return self.process.wait(timeout=DEADLINE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Suite]]:
    suites: list[Suite] = []

    def begin(**modes: str) -> Suite:
        suites.append(Suite(tmp_path, **modes))
        return suites[-1]

    yield begin
    for suite in suites:
        if suite.process.poll() is None:
            suite.process.kill()
            suite.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_gateway_first_and_redis_last_and_leaves_nothing(
    start: Callable[..., Suite], sign: signal.Signals
) -> None:
    suite = start(redis="ok", video="ok", speech="ok", worker="ok", gateway="ok")
    suite.until("Ctrl-C stops it")
    pids = [pid for name in ("video", "speech", "worker", "gateway") for pid in suite.pids(name)]
    pids.append(suite.redis_pid())
    assert suite.stop(sign) == 0
    assert (suite.directory / "stops").read_text().split()[0] == "gateway"
    said = suite.output().splitlines()
    assert said[-1].split()[-2:] == ["redis", "stopped"]
    assert [pid for pid in pids if alive(pid)] == []


def test_kill_9_of_the_supervisor_leaves_no_process_not_even_engines(start: Callable[..., Suite]) -> None:
    suite = start(redis="ok", video="ok", speech="ok", worker="ok", gateway="ok")
    suite.until("Ctrl-C stops it")
    pids = [pid for name in ("video", "speech", "worker", "gateway") for pid in suite.pids(name)]
    pids.append(suite.redis_pid())
    assert all(alive(pid) for pid in pids)
    assert suite.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in pids), DEADLINE_S, what="the end of all processes")


def test_the_table_shows_models_devices_addresses_notices_and_where_the_time_went(start: Callable[..., Suite]) -> None:
    suite = start(speech="ok", gateway="ok")
    said = suite.until("Ctrl-C stops it")
    row = next(line for line in said.splitlines() if line.startswith("speech  "))
    assert "speech-model" in row
    assert "cpu" in row
    assert "http://127.0.0.1:" in row
    assert "ready, random weights" in row
    assert "speech-model: random weights: the output is noise" in said
    assert "where the time went: speech: weights 1.5 s" in said
    assert "curl http://127.0.0.1:" in said


@pytest.mark.slow
def test_a_part_that_dies_is_started_again_and_said_so(start: Callable[..., Suite]) -> None:
    suite = start(speech="ok", gateway="ok")
    suite.until("Ctrl-C stops it")
    before = suite.pids("speech")
    os.kill(before[0], signal.SIGKILL)
    said = suite.until("ready again")
    assert "was killed by SIGKILL; starting it again" in said
    until(lambda: not alive(before[1]), DEADLINE_S, what="the end of the dead part's engine")
    assert suite.pids("speech") != before
    assert suite.stop() == 0


@pytest.mark.slow
def test_a_killed_redis_is_started_again_on_the_same_data(start: Callable[..., Suite]) -> None:
    from redis import Redis, RedisError

    suite = start(redis="ok", video="ok", gateway="ok")
    suite.until("Ctrl-C stops it")
    client = Redis(unix_socket_path=str(suite.directory / "redis" / "redis.sock"))
    client.set("job", "recorded")
    first = suite.redis_pid()
    os.kill(first, signal.SIGKILL)

    def back() -> bool:
        try:
            return client.get("job") == b"recorded" and suite.redis_pid() != first
        except (RedisError, StopIteration):
            return False

    until(back, DEADLINE_S, what="Redis with its data")
    assert client.config_get("appendonly", "appendfsync", "maxmemory-policy") == {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
    }
    assert suite.stop() == 0


def test_a_part_that_cannot_load_is_shown_as_failed_and_the_others_serve(start: Callable[..., Suite]) -> None:
    suite = start(vision="failed", speech="ok", gateway="ok")
    said = suite.until("Ctrl-C stops it")
    row = next(line for line in said.splitlines() if line.startswith("vision  "))
    assert row.endswith("failed")
    assert "vision failed: the vision engine is down: no such weights" in said
    assert suite.stop() == 0


@pytest.mark.slow
def test_a_process_that_never_lives_is_given_up_with_its_last_words(start: Callable[..., Suite]) -> None:
    suite = start(vision="crash", speech="ok", gateway="ok")
    said = suite.until("Ctrl-C stops it")
    assert "vision failed: vision: the weights are not there" in said
    assert len((suite.directory / "vision.starts").read_text().split()) == 3
    assert suite.stop() == 0


def test_a_process_that_dies_once_while_starting_gets_another_chance(start: Callable[..., Suite]) -> None:
    suite = start(speech="crash-first", gateway="ok")
    said = suite.until("Ctrl-C stops it")
    assert "ended with status 1; starting it again" in said
    assert suite.stop() == 0


def test_a_video_service_without_any_worker_that_lives_is_failed(start: Callable[..., Suite]) -> None:
    suite = start(redis="ok", video="failed", worker="crash", speech="ok", gateway="ok")
    said = suite.until("Ctrl-C stops it")
    row = next(line for line in said.splitlines() if line.startswith("video  "))
    assert row.endswith("failed")
    assert suite.stop() == 0


def test_when_nothing_can_serve_it_ends_with_an_error(start: Callable[..., Suite]) -> None:
    suite = start(speech="failed", gateway="ok")
    assert suite.process.wait(timeout=DEADLINE_S) == 1
    assert "nothing can serve" in suite.output()


def test_a_part_that_ignores_sigterm_is_killed_in_bounded_time(start: Callable[..., Suite]) -> None:
    suite = start(speech="stubborn", gateway="ok")
    suite.until("Ctrl-C stops it")
    pids = suite.pids("speech")
    began = time.monotonic()
    assert suite.stop() == 0
    assert time.monotonic() - began < 8
    assert "killed: it did not stop in time" in suite.output()
    assert not any(alive(pid) for pid in pids)


def test_asked_twice_it_kills_at_once(start: Callable[..., Suite]) -> None:
    suite = start(speech="very stubborn", gateway="ok")
    suite.until("Ctrl-C stops it")
    suite.process.send_signal(signal.SIGINT)
    suite.until("once more kills")
    time.sleep(1.1)  # time is what this is about: two signals within a second count as one request to stop
    suite.process.send_signal(signal.SIGINT)
    suite.until("asked twice")
    assert suite.process.wait(timeout=DEADLINE_S) == 0


def test_a_second_suite_on_the_same_data_is_refused_with_the_process(start: Callable[..., Suite]) -> None:
    suite = start(speech="ok", gateway="ok")
    suite.until("Ctrl-C stops it")
    second = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "up", "--only", "gateway", "--data", str(suite.directory)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 1
    assert f"process {suite.process.pid}" in second.stderr
    assert suite.stop() == 0


def test_a_lock_left_by_a_killed_suite_does_not_keep_the_next_from_starting(start: Callable[..., Suite]) -> None:
    first = start(speech="ok", gateway="ok")
    first.until("Ctrl-C stops it")
    first.stop(signal.SIGKILL)
    second = start(speech="ok", gateway="ok")
    second.until("Ctrl-C stops it")
    assert second.stop() == 0


def test_the_next_suite_waits_until_a_killed_ones_redis_has_put_its_data_away(start: Callable[..., Suite]) -> None:
    from redis import Redis

    first = start(redis="ok", video="ok", gateway="ok")
    first.until("Ctrl-C stops it")
    Redis(unix_socket_path=str(first.directory / "redis" / "redis.sock")).set("job", "recorded")
    redis_pid = first.redis_pid()
    os.kill(redis_pid, signal.SIGSTOP)
    first.stop(signal.SIGKILL)
    second = start(redis="ok", video="ok", gateway="ok")
    time.sleep(0.5)  # nothing is to happen meanwhile, so there is nothing to wait for
    assert second.seen == []
    assert second.lines.empty()
    os.kill(redis_pid, signal.SIGCONT)
    second.until("Ctrl-C stops it")
    assert not alive(redis_pid)
    assert Redis(unix_socket_path=str(second.directory / "redis" / "redis.sock")).get("job") == b"recorded"
    assert second.stop() == 0


@pytest.mark.slow
def test_a_terminal_that_is_gone_does_not_stop_the_suite(start: Callable[..., Suite], tmp_path: Path) -> None:
    suite = start(speech="ok", gateway="ok", hang_up_at="Ctrl-C stops it")
    suite.until("Ctrl-C stops it")
    os.kill(suite.pids("speech")[0], signal.SIGKILL)
    until(lambda: "ready again" in (tmp_path / "logs" / "suite.log").read_text(), DEADLINE_S, what="the restart")
    assert suite.stop() == 0
