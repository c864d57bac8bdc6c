"""Real service processes on free ports, for the tests of each service."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import free_port
from tests.waiting import until


@dataclasses.dataclass
class Service:
    """A running `python -m tessera_<name>`."""

    name: str
    url: str
    process: subprocess.Popen
    log: Path

    def parts(self) -> dict[str, str]:
        """What `/ready` says of each part."""
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                return json.load(answer)["parts"]
        except urllib.error.HTTPError as answer:
            return json.load(answer)["parts"]

    def wait_ready(self, seconds: float = 90.0) -> None:
        """Return when every part is ready; fails with the log when the process ends or time is over."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                return all(state == "ok" for state in self.parts().values())
            return False

        until(ready, seconds, what=self.log.read_text, every_s=0.05)

    def engine_pid(self) -> int:
        """The process id of its engine, from /proc."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
                    command = (folder / "cmdline").read_bytes()
                    if int(parent) == self.process.pid and f"tessera_{self.name}.worker".encode() in command:
                        return int(folder.name)
        raise AssertionError(f"{self.name} has no engine process")


@pytest.fixture(scope="session")
def start_service(tmp_path_factory):
    """`start_service(name, **settings)` is a context manager around a service process that is ready."""

    @contextlib.contextmanager
    def start(name: str, *, wait: bool = True, **settings: str) -> Iterator[Service]:
        folder = tmp_path_factory.mktemp(name)
        port = free_port()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        environment |= {
            "TESSERA_SUITE__DATA": str(folder),
            f"TESSERA_{name.upper()}__PORT": str(port),
            **{f"TESSERA_{key.upper()}": value for key, value in settings.items()},
        }
        log = folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tessera_{name}"], env=environment, stderr=output, stdout=output, cwd=folder
            )
        service = Service(name, f"http://127.0.0.1:{port}", process, log)
        try:
            if wait:
                service.wait_ready()
            yield service
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    return start
