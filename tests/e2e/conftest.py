"""A real suite for end-to-end tests: `tessera up` with every part, real models, real Redis, free ports.

`suite` is one suite for all tests of a run; do not break it. `breakable_suite` asks for keys, and its processes may be
killed: it must mend itself. `exact_suite` has text alone, with weights as stored. `start_suite` starts suites of a
test's own.
Tests that use any of them run in one xdist worker (group "suite"), so that two suites never fight for the cores.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.processes import alive
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SERVICES = ("text", "vision", "video", "speech")
START_S = 240.0
STOP_S = 60.0
WAIT_S = 60.0
KEYS = ("the-first-key-of-a-test", "the-second-key-of-a-test")
ON_ONE_CPU = {
    f"TESSERA_{part}__{key}": value
    for part in ("TEXT__ENGINE", "VISION__ENGINE", "VIDEO", "SPEECH")
    for key, value in (("DEVICE", "cpu"), ("THREADS", "1"))
}
"""The same answers on every machine; and beside another worker's tests, threads that wait for each other at every
operation make a step ten times slower."""
SHORT_WAITS = {"TESSERA_JOBS__LEASE_S": "3", "TESSERA_JOBS__REAP_EVERY_S": "1", "TESSERA_REDIS__TIMEOUT_S": "1"}


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"suite", "exact_suite", "breakable_suite", "start_suite"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("suite"))
            item.add_marker(pytest.mark.e2e)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, below the range from which the kernel takes ports for everybody else."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20000, 32000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid` with their command lines."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= descendants(child)
    return found


@dataclass
class RunningSuite:
    """A suite that is ready.

    `base_url` is the gateway's address, `urls` each service's own; `data` and `models` its directories; `output` the
    file with everything that `tessera up` printed; `environment` what it was started with, for starting it again.
    """

    process: subprocess.Popen[bytes]
    base_url: str
    urls: dict[str, str]
    data: Path
    models: Path
    output: Path
    environment: dict[str, str]
    started_in_s: float
    pids_seen: set[int] = field(default_factory=set)

    def said(self) -> str:
        """Everything it has printed."""
        return self.output.read_text()

    def pids(self, words: str = "") -> list[int]:
        """Processes of this suite whose command line contains `words`, e.g. `tessera_text.worker` (its engine)."""
        found = descendants(self.process.pid)
        self.pids_seen |= set(found)
        return [pid for pid, command in found.items() if words in command]

    def log(self, name: str) -> str:
        """The log of one part."""
        return (self.data / "logs" / f"{name}.log").read_text()

    def sdk(self, key: str = "any", *, service: str | None = None, retries: int = 0) -> openai.OpenAI:
        """OpenAI's client for the gateway, or for one service without it."""
        url = self.urls[service] if service else self.base_url
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries, timeout=WAIT_S)

    def metric(self, part: str, name: str, **labels: str) -> float:
        """A value of the gateway's or a service's `/metrics`; 0 when it is not there (yet)."""
        url = self.base_url if part == "gateway" else self.urls[part]
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End it. Returns the exit status; a suite that does not stop is killed and fails the test."""
        self.pids()
        if self.process.poll() is None:
            self.process.send_signal(sign)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the suite did not stop in {STOP_S} s:\n{self.said()}") from None

    def left_behind(self, within_s: float = 10.0) -> list[int]:
        """Processes of this suite that still live after `within_s` seconds. Ask after `stop`."""

        def left() -> list[int]:
            return [pid for pid in self.pids_seen if alive(pid)]

        with contextlib.suppress(AssertionError):
            until(lambda: not left(), within_s)
        return left()


def start(
    directory: Path, models: Path, *, only: str | None = None, extra: dict[str, str] | None = None
) -> RunningSuite:
    """Start `tessera up` on free ports and wait until it says that it is ready."""
    ports = dict(zip(("gateway", *SERVICES), free_ports(5), strict=True))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment |= {f"TESSERA_{name.upper()}__PORT": str(port) for name, port in ports.items()}
    environment |= {"TESSERA_SUITE__DATA": str(directory), "TESSERA_SUITE__MODELS": str(models)}
    environment |= ON_ONE_CPU | (extra or {})
    environment.pop("REDIS_URL", None)
    return launch(environment, only=only)


def launch(environment: dict[str, str], *, only: str | None = None) -> RunningSuite:
    """Start `tessera up` in an environment that names its ports and directories, and wait until it is ready."""
    directory = Path(environment["TESSERA_SUITE__DATA"])
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "terminal.txt"
    command = [sys.executable, "-m", "tessera.cli", "up", *(("--only", only) if only else ())]
    began = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=directory, start_new_session=True
        )
    urls = {name: f"http://127.0.0.1:{environment[f'TESSERA_{name.upper()}__PORT']}" for name in SERVICES}
    running = RunningSuite(
        process=process,
        base_url=f"http://127.0.0.1:{environment['TESSERA_GATEWAY__PORT']}",
        urls=urls,
        data=directory,
        models=Path(environment["TESSERA_SUITE__MODELS"]),
        output=output,
        environment=environment,
        started_in_s=0.0,
    )
    with contextlib.suppress(AssertionError):
        until(lambda: "Ctrl-C stops it" in running.said() or process.poll() is not None, START_S)
    if "Ctrl-C stops it" not in running.said():
        running.stop()
        logs = {log.name: log.read_text()[-2000:] for log in (directory / "logs").glob("*.log")}
        raise AssertionError(f"the suite does not start:\n{running.said()}\n{logs}")
    running.started_in_s = time.monotonic() - began
    running.pids()
    return running


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Models are fetched and made once per checkout; the store locks, so several runs may share them."""
    directory = ROOT / ".tessera" / "models"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[RunningSuite]:
    """The whole suite, ready. At the end it must stop by itself and leave nothing."""
    running = start(tmp_path_factory.mktemp("suite"), models_dir)
    yield running
    status = running.stop()
    left = running.left_behind()
    assert (status, left) == (0, []), running.said()


@pytest.fixture(scope="session")
def breakable_suite(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[RunningSuite]:
    """The whole suite with two keys (`keys`), short leases and timeouts, for killing its processes."""
    extra = {"TESSERA_GATEWAY__API_KEYS": ",".join(KEYS), **SHORT_WAITS}
    running = start(tmp_path_factory.mktemp("breakable"), models_dir, extra=extra)
    yield running
    status = running.stop()
    left = running.left_behind()
    assert (status, left) == (0, []), running.said()


@pytest.fixture(scope="module")
def exact_suite(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[RunningSuite]:
    """Gateway and text service with weights as they are stored: for equality with Transformers."""
    extra = {"TESSERA_TEXT__ENGINE__WEIGHTS": "stored"}
    running = start(tmp_path_factory.mktemp("exact"), models_dir, only="gateway,text", extra=extra)
    yield running
    assert running.stop() == 0, running.said()


@pytest.fixture(scope="session")
def keys() -> tuple[str, str]:
    """The keys that `breakable_suite` accepts."""
    return KEYS


@pytest.fixture(scope="session")
def wait() -> Callable[..., Any]:
    """`wait(condition, what, within_s=60)`: the first true value of `condition`, polled with a deadline."""

    def wait_for(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
        return until(condition, within_s, what=what, every_s=0.05)

    return wait_for


@pytest.fixture
def start_suite(tmp_path: Path, models_dir: Path) -> Iterator[Callable[..., RunningSuite]]:
    """`start_suite(only="text,gateway", extra={"TESSERA_…": "…"})` starts a suite that the test may break."""
    begun: list[RunningSuite] = []

    def begin(
        only: str | None = None, extra: dict[str, str] | None = None, directory: Path | None = None
    ) -> RunningSuite:
        begun.append(start(directory or tmp_path / "data", models_dir, only=only, extra=extra))
        return begun[-1]

    yield begin
    for running in begun:
        running.stop(signal.SIGKILL)
        running.left_behind()
