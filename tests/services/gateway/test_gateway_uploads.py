"""Forms that the gateway keeps on a disk: passed on as they came, renamed, sent again, refused when the disk is full;
and the memory of a real process while many of them are under way."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from tests.processes import free_port
from tests.waiting import until

from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.http import HttpSettings
from tessera.settings.tree import Settings

PATH = "/v1/audio/transcriptions"
MB = 1_000_000


@pytest.fixture
def spooling(tmp_path: Path, upstream: Any, gateway_of: Any, model: Any) -> tuple[Any, Any, Path]:
    """A gateway that keeps forms of more than 10,000 bytes on the disk, its upstream and the directory."""
    fake = upstream("ears-without-a-card", model("ears", "transcription"))
    place = tmp_path / "spool"
    settings = Settings(
        http=HttpSettings(spool_bytes=10_000, spool_dir=str(place)),
        gateway=GatewaySettings(
            services=[], upstreams=[UpstreamSettings(name="fake", url=fake.url)], aliases={"whisper-1": "ears"}
        ),
    )
    return gateway_of(settings).knows("ears"), fake, place


def form(size: int, model: str = "ears", *, before: bool = True) -> tuple[bytes, dict[str, str]]:
    """A form with a file of `size` bytes, and its headers."""
    field = f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    audio = os.urandom(size)
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + audio + b"\r\n"
    parts = [field, file] if before else [file, field]
    return b"".join(parts) + b"--b--\r\n", {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize("size", [100, 9_000, 11_000, 3_000_000])
@pytest.mark.parametrize("before", [True, False])
def test_a_form_is_passed_on_byte_for_byte(spooling: Any, size: int, before: bool) -> None:
    gateway, fake, place = spooling
    body, headers = form(size, before=before)
    answer = httpx.post(gateway.url + PATH, content=body, headers=headers)
    assert answer.status_code == 200
    ((_, sent, data),) = fake.requests
    assert data == body
    assert sent["content-length"] == str(len(body))
    assert place.exists() == (len(body) > 10_000)
    assert not place.exists() or not list(place.iterdir()), "the file has no name"


@pytest.mark.parametrize("before", [True, False])
def test_an_alias_in_a_form_on_the_disk_is_replaced(spooling: Any, before: bool) -> None:
    gateway, fake, _ = spooling
    body, headers = form(50_000, "whisper-1", before=before)
    assert httpx.post(gateway.url + PATH, content=body, headers=headers).status_code == 200
    ((_, _, data),) = fake.requests
    assert data == body.replace(b"whisper-1", b"ears")


def test_the_files_are_closed_when_their_requests_end(spooling: Any) -> None:
    gateway, _, place = spooling
    body, headers = form(50_000)
    for _ in range(5):
        httpx.post(gateway.url + PATH, content=body, headers=headers)

    def open_files() -> list[str]:
        links = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
        return [name for name in links if name.startswith(str(place))]

    until(lambda: not open_files(), what="the files to be closed")


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_form_on_the_disk_is_refused(spooling: Any, cut: bool) -> None:
    gateway, fake, _ = spooling
    body, headers = form(50_000)
    body = body[:-6] if cut else body.replace(b'name="model"', b'name="file"; filename="b"')
    answer = httpx.post(gateway.url + PATH, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert fake.requests == []


def test_a_directory_that_cannot_be_written_is_named(spooling: Any) -> None:
    gateway, fake, place = spooling
    place.write_bytes(b"in the way")
    body, headers = form(50_000)
    answer = httpx.post(gateway.url + PATH, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert "http.spool_dir" in answer.json()["error"]["message"]
    assert fake.requests == []


class Sink:
    """An upstream that reads bodies without keeping them, and answers when it has read so many."""

    def __init__(self, requests: int) -> None:
        self.expected = requests
        self.hashes: list[str] = []
        self.all_here = asyncio.Event()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "ears", "family": "x", "tasks": ["transcription", "chat"], "source": "x", "parameters": 1}
        listed = {"id": "ears", "created": 1, "card": {**card, "licence": "x"}}
        return web.json_response({"data": [listed]})

    async def _take(self, request: web.Request) -> web.Response:
        digest = hashlib.sha256()
        async for piece in request.content.iter_chunked(1 << 16):
            digest.update(piece)
        self.hashes.append(digest.hexdigest())
        if len(self.hashes) >= self.expected:
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 120)
        return web.json_response({"text": ""})

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class GatewayProcess:
    """A gateway in a process of its own."""

    def __init__(self, data: Path, upstream_port: int, **values: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        entries = [{"name": "sink", "url": f"http://127.0.0.1:{upstream_port}"}]
        ours = {
            "TESSERA_SUITE__DATA": str(data),
            "TESSERA_GATEWAY__PORT": str(self.port),
            "TESSERA_GATEWAY__SERVICES": "",
            "TESSERA_GATEWAY__UPSTREAMS": json.dumps(entries),
            **values,
        }
        self.process = subprocess.Popen([sys.executable, "-m", "tessera_gateway"], env={**kept, **ours})
        until(self._knows_the_model, 60, what="the gateway to know its model")

    def _knows_the_model(self) -> bool:
        try:
            return "ears" in httpx.get(self.url + "/v1/models").text
        except httpx.TransportError:
            return False

    def memory(self, key: str) -> int:
        """Bytes of `VmRSS` (now) or `VmHWM` (the most so far)."""
        found = re.search(rf"{key}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found
        return int(found[1]) * 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Any]:
    """Starts a sink and a gateway before it: `processes(expected, **environment)`."""
    opened: list[Any] = []

    def start(expected: int, **values: str) -> tuple[GatewayProcess, Sink]:
        sink = Sink(expected)
        opened.append(sink)
        gateway = GatewayProcess(tmp_path, sink.port, **values)
        opened.append(gateway)
        return gateway, sink

    yield start
    for one in reversed(opened):
        one.close()


@pytest.mark.slow
@pytest.mark.e2e
def test_many_large_files_at_once_take_little_memory_and_give_it_back(processes: Any) -> None:
    gateway, sink = processes(24)
    before = gateway.memory("VmRSS")
    body, headers = form(25 * MB)

    def upload(_: int) -> int:
        return httpx.post(gateway.url + PATH, content=body, headers=headers, timeout=200).status_code

    with ThreadPoolExecutor(24) as clients:
        assert list(clients.map(upload, range(24))) == [200] * 24
    assert set(sink.hashes) == {hashlib.sha256(body).hexdigest()}
    most, after = gateway.memory("VmHWM"), gateway.memory("VmRSS")
    print(f"before {before / MB:.0f} MB, most {most / MB:.0f} MB, after {after / MB:.0f} MB")
    assert most - before < 200 * MB, "600 MB were under way"
    assert after - before < 60 * MB


@pytest.mark.slow
@pytest.mark.e2e
def test_many_large_json_bodies_at_once_are_refused_over_the_budget(processes: Any) -> None:
    gateway, sink = processes(1 << 30, TESSERA_HTTP__BODY_MEMORY_BYTES=str(64 * MB))
    before = gateway.memory("VmRSS")
    body = json.dumps({"model": "ears", "messages": "x" * 15 * MB}).encode()
    statuses: list[int] = []

    def upload(_: int) -> None:
        headers = {"content-type": "application/json"}
        answer = httpx.post(gateway.url + "/v1/chat/completions", content=body, headers=headers, timeout=200)
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1

    with ThreadPoolExecutor(16) as clients:
        for number in range(16):
            clients.submit(upload, number)
        until(lambda: len(statuses) + len(sink.hashes) == 16, 100, what="every request to be refused or passed on")
        assert 1 <= len(sink.hashes) <= 4
        assert statuses.count(429) == len(statuses)
        sink._loop.call_soon_threadsafe(sink.all_here.set)
    assert statuses.count(200) == len(sink.hashes)
    most = gateway.memory("VmHWM")
    print(f"before {before / MB:.0f} MB, most {most / MB:.0f} MB")
    assert most - before < 64 * MB + 150 * MB, "240 MB were under way"
