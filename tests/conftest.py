"""What tests of several folders share: one thread per process, and a real Redis of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from tessera.suite import embedded_redis

# Before torch is imported anywhere: OpenMP teams of several busy processes stall at every barrier.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class RedisServer:
    """The embedded server on a Unix socket in a data directory of its own, with its append-only file."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process: subprocess.Popen[bytes] | None = None
        (data / "redis").mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"unix://{embedded_redis.socket_path(self.data)}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = (self.data / "redis.log").open("ab")
        self.process = subprocess.Popen(embedded_redis.command(self.data), stdout=log, stderr=log)
        log.close()
        until(lambda: self._answers() or self.process.poll() is not None, what="an answer of Redis")
        assert self.process.poll() is None, (self.data / "redis.log").read_text()

    def kill(self) -> None:
        """SIGKILL: nothing is put away."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(1)
            try:
                line.connect(str(embedded_redis.socket_path(self.data)))
                line.sendall(b"PING\r\n")
                return line.recv(16).startswith(b"+PONG")
            except OSError:
                return False


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running server. Its data directory has a short path, because a Unix socket's may have 107 bytes."""
    data = Path(tempfile.mkdtemp(prefix="tessera-"))
    server = RedisServer(data)
    server.start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope="session")
def counted() -> Callable[[Any], dict[str, Any]]:
    """A `usage` of OpenAI's SDK without what depends on earlier requests: which tokens were cached."""

    def of(usage: Any) -> dict[str, Any]:
        found: dict[str, Any] = usage.model_dump(exclude={"prompt_tokens_details"})
        return found

    return of
