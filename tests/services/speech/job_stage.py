"""Real processes for tests of long recordings: Redis, gateway, job workers, and a stand-in for the transcriber."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
from tests.conftest import RedisServer
from tests.processes import free_port
from tests.waiting import until

MODEL = "english-transcription"
RATE = 16_000
NAP_S = 0.2
"""So long a piece takes."""
PAUSE_S = 3.5
"""Longer than what windows of the model span, so that each clip is a piece of its own."""
WAIT_S = 300.0
ROUTE = "/v1/audio/transcriptions"


def recording(clips: int) -> bytes:
    """A person's sentences, each followed by silence, as a FLAC file; parts of one clip, so that they differ."""
    import moonshine_voice

    path = next(Path(moonshine_voice.__file__).parent.rglob("two_cities.wav"))
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        parts = [frame.to_ndarray()[0] for each in container.decode(audio=0) for frame in resampler.resample(each)]
    said, silence = np.concatenate(parts), np.zeros(int(PAUSE_S * RATE), dtype=np.int16)
    lengths = [2.0 + 0.25 * (number % 5) for number in range(clips)]
    pieces = [
        part
        for number, seconds in enumerate(lengths)
        for part in (said[int(0.5 * number * RATE) % (8 * RATE) :][: int(seconds * RATE)], silence)
    ]
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.concatenate(pieces)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    return file.getvalue()


class Stage:
    """A data directory and what runs on it."""

    def __init__(self) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="tessera-"))
        self.redis = RedisServer(self.data)
        self.redis.start()
        self.log = self.data / "pieces.jsonl"
        self.ports = {name: free_port() for name in ("speech", "gateway")}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        self.environment = {
            **inherited,
            "TESSERA_SUITE__DATA": str(self.data),
            "TESSERA_SUITE__MODELS": str(self.data / "models"),
            "TESSERA_SPEECH__PORT": str(self.ports["speech"]),
            "TESSERA_SPEECH__TRANSCRIPTION_MODEL": MODEL,
            "TESSERA_SPEECH__JOB_PIECE_SECONDS": "1",
            "TESSERA_SPEECH__CONCURRENT_JOBS": "1",
            "TESSERA_GATEWAY__PORT": str(self.ports["gateway"]),
            "TESSERA_GATEWAY__SERVICES": "speech",
            "TESSERA_GATEWAY__MAX_BODY_BYTES": str(4 * 1024 * 1024),
            "TESSERA_JOBS__LEASE_S": "1.5",
            "TESSERA_JOBS__REAP_EVERY_S": "0.2",
            "TESSERA_JOBS__BACKOFF_S": "0.1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.ports['gateway']}", timeout=60)
        self.sdk = openai.OpenAI(base_url=f"{self.http.base_url}/v1", api_key="none", max_retries=0)

    def serve(self) -> subprocess.Popen[bytes]:
        return self._start("gateway", {}, "-m", "tessera_gateway")

    def start_transcriber(self) -> subprocess.Popen[bytes]:
        """Start the stand-in for the speech service."""
        script = str(Path(__file__).with_name("transcriber_stand_in.py"))
        options = ("--port", str(self.ports["speech"]), "--log", str(self.log), "--nap-s", str(NAP_S))
        return self._start("speech", {}, script, *options)

    def work(self, **settings: Any) -> subprocess.Popen[bytes]:
        more = {f"TESSERA_SPEECH__{name.upper()}": str(value) for name, value in settings.items()}
        self.workers.append(self._start("worker", more, "-m", "tessera_speech.job_worker"))
        return self.workers[-1]

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker that is there, or a new one."""
        return next((worker for worker in self.workers if worker.poll() is None), None) or self.work()

    def ready(self) -> None:
        self.until(lambda: self._answers("/ready"), "the service and the gateway")

    def create(self, data: bytes, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "background": "true", **fields}
        answer = self.http.post(ROUTE, data=body, files={"file": ("talk.flac", data)})
        assert answer.status_code == 202, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def get(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{ROUTE}/{job_id}").raise_for_status().json()
        return found

    def content(self, job_id: str, **query: str) -> bytes:
        return self.http.get(f"{ROUTE}/{job_id}/content", params=query).raise_for_status().content

    def ended(self, job_id: str) -> dict[str, Any]:
        self.until(lambda: self.get(job_id)["status"] in ("completed", "failed", "cancelled"), f"{job_id} to end")
        return self.get(job_id)

    def transcribed_seconds(self, job_id: str) -> float:
        """Wait until some of a job is transcribed. Returns how many seconds."""
        self.until(lambda: (self.get(job_id)["seconds_heard"] or 0) > 0, "some of it to be transcribed")
        return float(self.get(job_id)["seconds_heard"])

    def pieces(self, what: str = "begun") -> list[int]:
        """First samples of the pieces that the stand-in was sent, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [each["first"] for each in map(json.loads, lines) if each["what"] == what]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def holds() -> bool:
            assert not any(process.poll() for process in self.processes[:2]), f"a server has ended\n{self._logs()}"
            return bool(condition())

        until(holds, WAIT_S, what=lambda: f"{what}\n{self._logs()}", every_s=0.02)

    def _logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in self.data.glob("*.log"))

    def clear(self) -> None:
        """End the workers; servers go on."""
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self.workers.clear()

    def close(self) -> None:
        self.sdk.close()
        self.http.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.redis.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get(path).status_code == 200
        return False

    def _start(self, name: str, more: Mapping[str, str], *command: str) -> subprocess.Popen[bytes]:
        with (self.data / f"{name}-{len(self.processes)}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], env={**self.environment, **more}, cwd=self.data, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """The service and the gateway, ready."""
    stage = Stage()
    try:
        stage.start_transcriber()
        stage.serve()
        stage.ready()
        yield stage
    finally:
        stage.close()
