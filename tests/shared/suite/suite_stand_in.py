"""Stand-ins for the suite's parts and a supervisor that runs them: real processes that need no model.

`part <name> <port> <mode> <directory>` is a server that answers as a service does and has a child of its own, as a
service has its engine. `suite <directory> <parts as JSON>` is the real supervisor over such parts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def part(name: str, port: int, mode: str, directory: Path) -> None:
    starts = directory / f"{name}.starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if mode == "crash" or (mode == "crash-first" and len(starts.read_text().split()) == 1):
        sys.exit(f"{name}: the weights are not there")

    from tessera.processes import die_with_parent

    engine_command = [sys.executable, "-c", "import signal; signal.pause()"]
    engine = subprocess.Popen(engine_command, preexec_fn=die_with_parent())  # noqa: PLW1509 - no threads yet
    written = directory / f"{name}.pids.new"
    written.write_text(f"{os.getpid()} {engine.pid}")
    written.rename(directory / f"{name}.pids")  # whoever sees it sees all of it

    def stop(*_: object) -> None:
        if "stubborn" not in mode:
            with (directory / "stops").open("a") as file:
                file.write(f"{name}\n")
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if port == 0:
        while True:
            signal.pause()
    answers = {
        "/ready": {"status": "failed" if mode == "failed" else "ok", "service": name, "version": "0", "parts": {}},
        "/v1/models": {"object": "list", "data": [_model(name)]},
    }
    if mode == "failed":
        answers["/v1/models"] = {"error": {"message": f"the {name} engine is down: no such weights"}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"tessera_{name}_start_weights_seconds 1.5\n".encode()
            if self.path in answers:
                body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _model(name: str) -> dict[str, object]:
    card = {
        "id": f"{name}-model",
        "family": "StandIn",
        "tasks": ["chat"],
        "source": "tests",
        "parameters": 1,
        "licence": "none",
        "notice": "random weights: the output is noise",
    }
    return {"id": f"{name}-model", "created": 0, "card": card, "device": "cpu"}


def suite(directory: Path, specs: list[dict[str, object]]) -> int:
    from tessera.settings.load import environment, load
    from tessera.suite import embedded_redis, lock
    from tessera.suite.parts import Selection, SuitePart, local_url
    from tessera.suite.report import Terminal
    from tessera.suite.supervisor import Supervisor

    settings = load(environment={}, overrides={"suite": {"data": str(directory)}, "video": {"model": str(directory)}})
    parts = []
    for spec in specs:
        name, kind, port, mode = (spec[key] for key in ("name", "kind", "port", "mode"))
        command = [sys.executable, __file__, "part", str(name), str(port), str(mode), str(directory)]
        death_signal = signal.SIGKILL
        if kind == "redis":
            command, death_signal = embedded_redis.command(directory), signal.SIGTERM
        parts.append(
            SuitePart(
                name=str(name),
                kind=kind,
                command=command,
                stop_s=1.0 if mode == "stubborn" else 10.0,
                url=local_url("127.0.0.1", int(port)) if port else None,
                service="video" if kind == "worker" else name if kind == "service" else None,
                death_signal=death_signal,
            )
        )
    services = [spec["name"] for spec in specs if spec["kind"] == "service" and spec["name"] != "text"]
    selection = Selection(gateway=any(spec["kind"] == "gateway" for spec in specs), services=services)
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    with lock.held(directory) as held:
        terminal = Terminal(sys.stdout, logs / "suite.log")
        return asyncio.run(Supervisor(settings, selection, parts, environment(), logs, terminal, held).serve())


if __name__ == "__main__":
    if sys.argv[1] == "part":
        part(sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    else:
        sys.exit(suite(Path(sys.argv[2]), json.loads(sys.argv[3])))
