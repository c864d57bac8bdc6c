"""The video service with real processes, a real Redis and the official SDK: the faults that a job survives."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import save_file
from tests.processes import free_port
from tests.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]

DEADLINE_S = 90.0
LONG = {"size": "128x128", "steps": "100", "seconds": "2"}


class Suite:
    """The service and its workers over one data directory."""

    def __init__(self, data: Path, models: Path) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        self.environment = {
            **inherited,
            "TESSERA_SUITE__DATA": str(data),
            "TESSERA_SUITE__MODELS": str(models),
            "TESSERA_VIDEO__PORT": str(self.port),
            "TESSERA_VIDEO__THREADS": "1",
            "TESSERA_JOBS__LEASE_S": "1.5",
            "TESSERA_JOBS__REAP_EVERY_S": "0.2",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        self.http = httpx.Client(base_url=self.url, timeout=10)

    def start(self, module: str) -> subprocess.Popen[bytes]:
        with (self.data / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module], env=self.environment, cwd=self.data, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def parts(self) -> dict[str, str]:
        try:
            return self.http.get("/ready").json()["parts"]
        except httpx.TransportError:
            return {}

    def until(self, condition: Callable[[], bool]) -> None:
        def logs() -> str:
            return "\n".join(path.read_text() for path in self.data.glob("*.log"))

        until(condition, DEADLINE_S, what=logs, every_s=0.02)

    def until_ready(self) -> None:
        self.until(lambda: self.parts() == {"redis": "ok", "worker": "ok"})

    def create(self, **fields: Any) -> str:
        return self.client.videos.create(prompt="a cat", extra_body=fields).id

    def until_progress(self, video_id: str, percent: int) -> None:
        self.until(lambda: self.client.videos.retrieve(video_id).progress >= percent)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.client.close()
        self.http.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def suite(redis_server: Any, models: Path) -> Iterator[Suite]:
    found = Suite(redis_server.data, models)
    yield found
    found.close()


def adapter(path: Path) -> Path:
    """One of the starter, which changes what its first block attends to."""
    sides = {"A": np.ones((1, 128), np.float32), "B": np.ones((128, 1), np.float32)}
    layer = "transformer.blocks.0.attn1.to_v"
    save_file({f"{layer}.lora_{side}.weight": value for side, value in sides.items()}, path)
    return path


def test_a_video_from_prompt_to_file_with_the_official_sdk(suite: Suite) -> None:
    suite.environment["TESSERA_VIDEO__ADAPTERS"] = f"film={adapter(suite.data / 'film.safetensors')}"
    service = suite.start("tessera_video")
    suite.until(lambda: suite.parts() == {"redis": "ok", "worker": "starting"})
    worker = suite.start("tessera_video.worker")
    suite.until_ready()

    model = suite.client.models.list().data[0]
    assert model.id == "shapes-video"
    assert "shapes" in model.card["notice"]  # type: ignore[attr-defined]
    assert model.device.startswith("cpu")  # type: ignore[attr-defined]
    assert "libtorch" not in Path(f"/proc/{service.pid}/maps").read_text()

    video = suite.client.videos.create_and_poll(prompt="a cat", seconds="4", model=model.id, size="64x64")
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    clip = suite.client.videos.download_content(video.id).read()
    with av.open(io.BytesIO(clip)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert len(list(container.decode(video=0))) == 17
    assert suite.client.videos.download_content(video.id, variant="thumbnail").read().startswith(b"\xff\xd8\xff")
    assert [found.id for found in suite.client.videos.list()] == [video.id]
    assert "tessera_jobs_video_workers 1.0" in suite.http.get("/metrics").text

    # an adapter of the settings, chosen by a request
    assert model.card["adapters"] == ["film"]  # type: ignore[attr-defined]
    short = {"frames": 1, "steps": 2, "seed": 1}
    plain, adapted = (suite.create(**short, adapters=mix) for mix in ({"film": 0}, {"film": 1}))
    for made in (plain, adapted):
        assert suite.client.videos.poll(made).status == "completed"
    assert (
        len({suite.client.videos.download_content(made, variant="thumbnail").read() for made in (plain, adapted)}) == 2
    )
    with pytest.raises(openai.BadRequestError, match="'oil'; it has: film"):
        suite.create(**short, adapters={"oil": 1})

    # deleting a running job really stops its worker: the next one does not wait for it
    long = suite.create(size="320x320", steps="100", seconds="4")
    suite.until_progress(long, 1)
    suite.client.videos.delete(long)
    started = time.monotonic()
    assert suite.client.videos.create_and_poll(prompt="a dog", seconds="1").status == "completed"
    assert time.monotonic() - started < 30
    assert not (suite.data / "artifacts" / long).exists()

    for process in (worker, service):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_job_survives_a_killed_worker_a_stopped_worker_and_a_killed_redis(suite: Suite, redis_server: Any) -> None:
    suite.start("tessera_video")
    first = suite.start("tessera_video.worker")
    suite.until_ready()
    video_id = suite.create(**LONG)
    suite.until_progress(video_id, 5)
    first.kill()
    first.wait()

    second = suite.start("tessera_video.worker")
    suite.until(lambda: suite.client.videos.retrieve(video_id).status == "queued")
    suite.until_progress(video_id, 5)
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert suite.client.videos.retrieve(video_id).status == "queued"

    redis_server.kill()
    assert suite.http.get(f"/v1/videos/{video_id}").status_code == 503
    redis_server.start()
    assert suite.client.videos.retrieve(video_id).status == "queued"

    suite.start("tessera_video.worker")
    suite.until_progress(video_id, 5)
    redis_server.kill()
    time.sleep(0.5)  # time is what this is about: the worker goes on without Redis for a while
    redis_server.start()
    video = suite.client.videos.poll(video_id)
    assert (video.status, video.error) == ("completed", None)
    assert suite.client.videos.create_and_poll(prompt="a dog", seconds="4").status == "completed"


def test_a_worker_that_cannot_load_its_model_says_why_and_ends(suite: Suite, tmp_path: Path) -> None:
    suite.environment["TESSERA_VIDEO__MODEL"] = str(tmp_path)
    worker = suite.start("tessera_video.worker")
    assert worker.wait(60) == 1
    assert "model_index.json" in (suite.data / "tessera_video.worker.log").read_text()
