"""Real processes for tests of faults: Redis, the video service, the gateway and workers, and what they have done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.conftest import RedisServer

WAIT_S = 60.0
ENDED = ("completed", "failed")
STEP_S = 0.05
STEPS_BETWEEN_CHECKPOINTS = 4
CLEAR_S = 0.5
"""So long after Redis was away it counts as away still: clients have to connect again."""


@dataclasses.dataclass
class Stage:
    """A data directory and what runs on it."""

    redis: RedisServer

    def __post_init__(self) -> None:
        self.data = self.redis.data
        self.log = self.data / "operations.jsonl"
        self.ports = {"tessera_video": _free_port(), "tessera_gateway": _free_port()}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.away: list[tuple[float, float]] = []
        """When Redis was not there."""
        self.cancelled: dict[str, float] = {}
        """When the answer to a cancel came."""
        self.accepted: list[str] = []
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.ports['tessera_video']}", timeout=10)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        self.environment = {
            **inherited,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "TESSERA_SUITE__DATA": str(self.data),
            "TESSERA_REDIS__URL": self.redis.url,
            "TESSERA_REDIS__TIMEOUT_S": "1",
            "TESSERA_VIDEO__PORT": str(self.ports["tessera_video"]),
            "TESSERA_VIDEO__MAX_STEPS": "1000",
            "TESSERA_GATEWAY__PORT": str(self.ports["tessera_gateway"]),
            "TESSERA_GATEWAY__SERVICES": "video",
            "TESSERA_JOBS__LEASE_S": "1.5",
            "TESSERA_JOBS__REAP_EVERY_S": "0.2",
            "TESSERA_JOBS__BACKOFF_S": "0.1",
            "TESSERA_JOBS__MAX_ATTEMPTS": "20",
            "TESSERA_JOBS__MAX_QUEUED_PER_KEY": "100",
        }

    def serve(self, module: str = "tessera_video") -> subprocess.Popen[bytes]:
        """Start an HTTP server; `through` chooses which of them requests go to."""
        return self._start(module, "-m", module)

    def through(self, module: str) -> None:
        """Send requests there from now on."""
        self.http.close()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.ports[module]}", timeout=10)

    def work(
        self, *options: str, step_s: float = STEP_S, slots: int = 2, redis_url: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a worker (see `job_worker`)."""
        more = {"TESSERA_REDIS__URL": redis_url or self.redis.url, "TESSERA_VIDEO__CONCURRENT_JOBS": str(slots)}
        step = ("--step-s", str(step_s), "--checkpoint-steps", str(STEPS_BETWEEN_CHECKPOINTS))
        script = str(Path(__file__).with_name("job_worker.py"))
        self.workers.append(self._start("worker", script, "--log", str(self.log), *step, *options, **more))
        return self.workers[-1]

    def ready(self) -> None:
        """Wait for a server and a worker."""
        self.until(lambda: self._answers("/ready"), "a server and a worker")

    def create(self, steps: int = 20, **fields: Any) -> str:
        """Have a job accepted; asks again, with the same key, until it is."""
        key = {"idempotency-key": os.urandom(8).hex()}
        body = {"prompt": "a nap", "seconds": "1", "size": "64x64", "steps": steps, **fields}
        video = self._asked("POST", "/v1/videos", json=body, headers=key)
        self.accepted.append(video["id"])
        return str(video["id"])

    def cancel(self, video_id: str) -> None:
        """Cancel a job, unless it has ended."""
        self._asked("POST", f"/v1/videos/{video_id}/cancel", also=(409,))
        self.cancelled[video_id] = time.monotonic()

    def get(self, video_id: str) -> dict[str, Any]:
        """The job as it is."""
        return self._asked("GET", f"/v1/videos/{video_id}")

    def events(self, video_id: str) -> list[tuple[str, dict[str, Any]]]:
        """All events of an ended job, replayed."""
        text = self.http.get(f"/v1/videos/{video_id}/events").raise_for_status().text
        names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
        shown = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        return list(zip(names, shown, strict=True))

    def ended(self, *video_ids: str, within_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Wait until these jobs have ended."""
        chosen = video_ids or tuple(self.accepted)
        self.until(lambda: all(self.get(each)["status"] in ENDED for each in chosen), "jobs to end", within_s)
        return [self.get(each) for each in chosen]

    def operations(self, video_id: str, *what: str) -> list[dict[str, Any]]:
        """What workers have done for a job, in order."""
        found = [operation for operation in self.all_operations() if operation["job"] == video_id]
        return [operation for operation in found if not what or operation["what"] in what]

    def all_operations(self) -> list[dict[str, Any]]:
        """What workers have done."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sorted((json.loads(line) for line in lines), key=lambda operation: operation["at"])

    def stepping(self, video_id: str, steps: int = 1) -> dict[str, Any]:
        """Wait until a job has made so many steps. Returns the last."""
        self.until(lambda: len(self.operations(video_id, "stepped")) >= steps, f"{steps} steps")
        return self.operations(video_id, "stepped")[-1]

    @contextlib.contextmanager
    def without_redis(self) -> Iterator[None]:
        """Kill Redis; start it again at the end."""
        began = time.monotonic()
        self.redis.kill()
        try:
            yield
        finally:
            self.redis.start()
            self.away.append((began, time.monotonic() + CLEAR_S))

    def until(self, condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in self.data.glob("*.log"))
                raise AssertionError(f"waited {within_s} s for {what}\n{logs}")
            time.sleep(0.02)

    def clear(self) -> None:
        """End the workers and forget what was; servers go on."""
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        self.workers.clear()
        self.accepted.clear()
        self.cancelled.clear()
        self.away.clear()
        self.log.unlink(missing_ok=True)

    def close(self) -> None:
        self.http.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _start(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.data / f"{name}-{len(self.processes)}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], env=self.environment | more, cwd=self.data, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get(path).status_code == 200
        return False

    def _asked(self, method: str, path: str, *, also: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
        found: list[httpx.Response] = []

        def ask() -> bool:
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.request(method, path, **more)
                assert answer.status_code in (200, 429, 502, 503, 504, *also), answer.text
                if answer.status_code in (200, *also):
                    found.append(answer)
            return bool(found)

        self.until(ask, f"{method} {path}")
        shown: dict[str, Any] = found[0].json()
        return shown


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
