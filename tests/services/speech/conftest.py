"""A real speech service on a free port, its models made once per test process, and recordings made by PyAV."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from tests.processes import free_port
from tests.shared.speech.fixtures import (
    SPEECH,
    TRANSCRIPTION,
    codec_model,
    fastspeech_model,
    melody_fixture,
    models_dir,
    synthesis_model,
    transcription_model,
)
from tests.waiting import until

from tessera.hub.store import ModelDirectory

__all__ = [
    "codec_model",
    "fastspeech_model",
    "melody_fixture",
    "models_dir",
    "synthesis_model",
    "transcription_model",
]

START_S = 240.0
"""Deadline of a service to be ready: on a busy machine its imports alone may take a minute."""


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"tessera_speech_engine_{name} "):
                return float(line.split()[1])
        raise LookupError(name)

    def wait_ready(self) -> None:
        until(self._is_ready, START_S, what=f"{self.url} to be ready")

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/ready").status_code == 200
        return False


@contextmanager
def serving(models_dir: Path, data: Path, *, drain_s: float = 30.0, **speech: Any) -> Iterator[Service]:
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment |= {
        "TESSERA_HTTP__DRAIN_S": str(drain_s),
        "TESSERA_SUITE__DATA": str(data),
        "TESSERA_SUITE__MODELS": str(models_dir),
        "TESSERA_SPEECH__PORT": str(port),
        "TESSERA_SPEECH__SYNTHESIS_MODEL": SPEECH,
        "TESSERA_SPEECH__TRANSCRIPTION_MODEL": TRANSCRIPTION,
        "TESSERA_SPEECH__THREADS": "1",
        "TESSERA_SPEECH__VOICE_DETECTION": "false",  # what is played to these models is not speech
        "TESSERA_SPEECH__DEVICE": "cpu",
        **{f"TESSERA_SPEECH__{name.upper()}": str(value) for name, value in speech.items()},
    }
    process = subprocess.Popen([sys.executable, "-m", "tessera_speech"], env=environment, cwd=data)
    service = Service(f"http://127.0.0.1:{port}", process)
    try:
        service.wait_ready()
        yield service
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ChatServer(ThreadingHTTPServer):
    """Answers every conversation with `says`, a word at a time, or as `behave` tells it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.says = "Hello there, friend. How are you today?"
        self.behave = "plainly"
        self.asked: list[dict[str, Any]] = []
        self.tenants: list[str | None] = []
        self.left = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class ChatHandler(BaseHTTPRequestHandler):
    server: ChatServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "fake-chat", "object": "model", "created": 1}]})

    def do_POST(self) -> None:
        server = self.server
        server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        server.tenants.append(self.headers.get("x-tessera-tenant"))
        if server.behave == "refuse":
            error = {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}
            return self._json(404, {"error": error})
        if server.behave == "full" and len(server.asked[-1]["messages"]) > 2:
            error = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
            return self._json(400, {"error": error})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for word in re.findall(r"\S+\s*", server.says):
                self._event({"choices": [{"index": 0, "delta": {"content": word}}]})
            while server.behave == "endless":
                self._event({"choices": [{"index": 0, "delta": {"content": "And on it goes. "}}]})
                time.sleep(0.02)  # the pace of the words of an endless answer
            if server.behave == "cut":
                return None
            usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            server.left.set()

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="session")
def chat() -> Iterator[ChatServer]:
    """The language model of live conversations."""
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.behave = "plainly"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def service(
    chat: ChatServer,
    models_dir: Path,
    synthesis_model: ModelDirectory,
    transcription_model: ModelDirectory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("speech")
    with serving(models_dir, data, conversation_url=chat.url, max_live_sessions=3) as running:
        yield running


@pytest.fixture(scope="session")
def vad_service(
    models_dir: Path,
    synthesis_model: ModelDirectory,
    transcription_model: ModelDirectory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    """A service that finds speech before it transcribes, as it does by default."""
    with serving(models_dir, tmp_path_factory.mktemp("detecting"), voice_detection="true") as running:
        yield running


FILES = {
    "wav": ("wav", "pcm_s16le", "s16"),
    "wav-float": ("wav", "pcm_f32le", "flt"),
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "flac": ("flac", "flac", "s16"),
    "opus": ("ogg", "libopus", "flt"),
    "m4a": ("mp4", "aac", "fltp"),
    "webm": ("webm", "libopus", "flt"),
    "aac": ("adts", "aac", "fltp"),
    "aiff": ("aiff", "pcm_s16be", "s16"),
    "mka": ("matroska", "libmp3lame", "fltp"),
}


def recording(kind: str, samples: np.ndarray[Any, Any], rate: int = 16_000, channels: int = 1) -> bytes:
    """A file of `kind` made by PyAV."""
    muxer, codec, sample_format = FILES[kind]
    sink = io.BytesIO()
    layout = "mono" if channels == 1 else "stereo"
    with av.open(sink, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=48_000 if codec == "libopus" else rate, layout=layout)
        packed = np.repeat(samples, channels)[None, :]
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(packed), format="flt", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        resampler = av.AudioResampler(format=sample_format, layout=layout, rate=stream.rate)
        for made in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return sink.getvalue()


def played(data: bytes) -> tuple[np.ndarray[Any, Any], int]:
    """What PyAV decodes: mono float samples and their rate."""
    with av.open(io.BytesIO(data)) as container:
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        parts = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        return np.concatenate([part.to_ndarray()[0] for part in parts]), rate


@pytest.fixture(scope="session", name="recording")
def recording_fixture() -> Callable[..., bytes]:
    return recording


@pytest.fixture(scope="session", name="played")
def played_fixture() -> Callable[[bytes], tuple[np.ndarray[Any, Any], int]]:
    return played


@pytest.fixture(scope="session", name="serving")
def serving_fixture() -> Callable[..., Any]:
    return serving
