"""Starts the suite that a benchmark measures: `tessera up` on free ports with a temporary data directory.

Models come from, and stay in, the machine's own models directory unless a benchmark asks for an empty one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

PARTS = ("gateway", "text", "vision", "video", "speech")
READY_WORDS = "Ctrl-C stops it"
START_LIMIT_S = 600.0
STOP_LIMIT_S = 60.0


class Suite:
    """A context manager around a running suite.

    Args:
        data: data directory of the suite.
        only: parts to start, as in `tessera up --only`; None starts all.
        models: models directory; None takes this machine's.
        settings: values for keys of `tessera.toml`, with dotted names: `{"text.engine.weights": "int8"}`.
    """

    def __init__(
        self,
        data: Path,
        *,
        only: str | None = None,
        models: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.data = data
        self.only = only
        self.settings = settings or {}
        self.ports = dict(zip(PARTS, _free_ports(len(PARTS)), strict=True))
        own = Path("~/.local/share/tessera/models").expanduser()
        self.models = models or own
        self.seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, part: str) -> str:
        """Address of the gateway or of a service."""
        return f"http://127.0.0.1:{self.ports[part]}"

    @property
    def pid(self) -> int:
        """Id of the process that started the others."""
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """Everything that the suite has printed."""
        return (self.data / "terminal.txt").read_text(encoding="utf-8")

    def __enter__(self) -> Suite:
        self.data.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        environment |= {f"TESSERA_{part.upper()}__PORT": str(port) for part, port in self.ports.items()}
        environment |= {"TESSERA_SUITE__DATA": str(self.data), "TESSERA_SUITE__MODELS": str(self.models)}
        environment |= {f"TESSERA_{name.replace('.', '__').upper()}": value for name, value in self.settings.items()}
        command = [sys.executable, "-m", "tessera.cli", "up", *(("--only", self.only) if self.only else ())]
        began = time.perf_counter()
        with (self.data / "terminal.txt").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=self.data
            )
        while READY_WORDS not in self.said():
            if self._process.poll() is not None or time.perf_counter() - began > START_LIMIT_S:
                self._stop()
                raise SystemExit(f"the suite does not start:\n{self.said()}")
            time.sleep(0.02)
        self.seconds = time.perf_counter() - began
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_LIMIT_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
