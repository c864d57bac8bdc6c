"""A stand-in for the speech service: it answers transcriptions with what the test sets, and keeps what it was sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CARD = {
    "id": "fake-ears",
    "family": "fake",
    "tasks": ["transcription"],
    "source": "a test",
    "parameters": 0,
    "licence": "none",
}


class SpeechServer(ThreadingHTTPServer):
    """Lists one model that transcribes, and transcribes `heard`, or refuses with `refusal`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SpeechHandler)
        self.heard = "What is two plus two?"
        self.refusal: tuple[int, dict[str, Any], dict[str, str]] | None = None
        self.tasks = ["transcription"]
        self.answer: bytes | None = None
        self.waits = threading.Event()
        self.waits.set()
        self.files: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class SpeechHandler(BaseHTTPRequestHandler):
    server: SpeechServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        card = {**CARD, "tasks": self.server.tasks}
        model = {"id": "fake-ears", "object": "model", "created": 1, "owned_by": "test", "card": card}
        self._send(200, json.dumps({"object": "list", "data": [model]}).encode(), {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        boundary = re.search("boundary=(.*)", self.headers["content-type"])[1].strip('"').encode()
        fields = dict(part.split(b"\r\n\r\n", 1) for part in body.split(b"--" + boundary) if b"\r\n\r\n" in part)
        (file,) = [value[:-2] for head, value in fields.items() if b'name="file"' in head]
        server.files.append(file)
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        server.waits.wait(20)
        if server.refusal is not None:
            status, error, headers = server.refusal
            self._send(status, json.dumps({"error": error}).encode(), headers)
        else:
            self._send(200, server.answer or json.dumps({"text": server.heard}).encode(), {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), "content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def speech_server() -> Iterator[SpeechServer]:
    """A running server."""
    server = SpeechServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.waits.set()
        server.shutdown()
        server.server_close()
