"""A rollout breaks no stream. Real servers are told to stop while they answer: a service, a gateway, both at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.processes import free_port
from tests.waiting import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

STAND_IN = Path(__file__).parents[2] / "shared/web/stream_stand_in.py"
CHAT = "/v1/chat/completions"
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Server:
    """A server in a process of its own."""

    def __init__(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env={**kept, **environment}, stdout=output, stderr=output)
        until(self.knows_the_model, 60, what=log.read_text)

    def knows_the_model(self) -> bool:
        try:
            return "clock" in httpx.get(self.url + "/v1/models").text
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts services: `service(drain_s, unready_s)`."""
    started: list[Server] = []

    def start(drain_s: float, unready_s: float = 0.0) -> Server:
        port = free_port()
        command = [sys.executable, str(STAND_IN), str(port), str(drain_s), str(unready_s)]
        started.append(Server(command, port, tmp_path / f"service-{len(started)}.log"))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts gateways: `front(drain_s, service, …)`; `speech` is the service that carries live sessions."""
    started: list[Server] = []

    def start(drain_s: float, *services: Server, unready_s: float = 0.0, speech: Server | None = None) -> Server:
        port = free_port()
        entries = [{"name": f"s{number}", "url": each.url} for number, each in enumerate(services)]
        environment = {
            "TESSERA_SUITE__DATA": str(tmp_path),
            "TESSERA_GATEWAY__PORT": str(port),
            "TESSERA_GATEWAY__SERVICES": "speech" if speech else "",
            "TESSERA_GATEWAY__UPSTREAMS": json.dumps(entries),
            "TESSERA_HTTP__DRAIN_S": str(drain_s),
            "TESSERA_HTTP__UNREADY_S": str(unready_s),
            **({"TESSERA_SPEECH__URL": speech.url} if speech else {}),
        }
        command = [sys.executable, "-m", "tessera_gateway"]
        started.append(Server(command, port, tmp_path / "gateway.log", **environment))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


def streamed(url: str, seconds: float) -> list[Any]:
    """The events of a stream as they are decoded; `[DONE]` as it is. Raises if the connection is cut."""
    found: list[Any] = []
    body = {"model": "clock", "seconds": seconds, "stream": True, "messages": []}
    with httpx.stream("POST", url + CHAT, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def whole(events: list[Any], seconds: float) -> bool:
    return [each["n"] for each in events[:-1]] == list(range(int(10 * seconds))) and events[-1] == "[DONE]"


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def opened(clients: ThreadPoolExecutor, server: Server, *seconds: float) -> list[Future[list[Any]]]:
    """Streams of so many seconds, all of which have begun."""
    streams = [clients.submit(streamed, server.url, each) for each in seconds]
    until(lambda: _in_flight(server) > len(seconds), what="the streams to begin")  # this request is one more
    return streams


def _in_flight(server: Server) -> float:
    for line in httpx.get(server.url + "/metrics").text.splitlines():
        if line.startswith("tessera_http_requests_in_flight "):
            return float(line.split()[1])
    return 0.0


def test_streams_end_before_their_server_and_its_parts(service: Any, clients: ThreadPoolExecutor) -> None:
    server = service(30)
    streams = opened(clients, server, 0.5, 1, 1.5, 2)
    server.stop()
    for stream, seconds in zip(streams, (0.5, 1, 1.5, 2), strict=True):
        assert whole(stream.result(), seconds)
    assert server.ended() == 0
    assert server.log.read_text().split("stream ended")[-1].strip() == "parts closed"


@pytest.mark.parametrize("stopped", ["gateway", "both"])
def test_of_eight_streams_of_twenty_seconds_none_breaks(
    service: Any, front: Any, clients: ThreadPoolExecutor, stopped: str
) -> None:
    behind = service(60)
    gateway = front(60, behind)
    streams = opened(clients, gateway, *[20.0] * 8)
    told = [gateway, behind] if stopped == "both" else [gateway]
    for server in told:
        server.stop()
    assert [whole(stream.result(), 20.0) for stream in streams] == [True] * 8
    assert [server.ended() for server in told] == [0] * len(told)


@pytest.mark.parametrize("stopped", ["service", "gateway"])
def test_what_cannot_end_in_time_ends_with_an_error_event(
    service: Any, front: Any, clients: ThreadPoolExecutor, stopped: str
) -> None:
    behind = service(0.5)
    gateway = front(0.5, behind)
    streams = opened(clients, gateway, *[60.0] * 8)
    slow = {"model": "clock", "seconds": 60, "messages": []}
    plain = clients.submit(httpx.post, gateway.url + CHAT, json=slow, timeout=60)
    until(lambda: _in_flight(gateway) >= 10, what="the plain request to begin")
    server = behind if stopped == "service" else gateway
    server.stop()
    for stream in streams:
        *events, last = stream.result()
        assert events
        assert last["error"]["code"] == "unavailable"
        assert "stopping" in last["error"]["message"]
    answer = plain.result()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert answer.headers["retry-after"]
    assert server.ended() == 0


def live(server: Server) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + "/v1/realtime")


def test_a_live_session_goes_on_while_its_gateway_drains(service: Any, front: Any) -> None:
    gateway = front(60, unready_s=2, speech=service(60))
    with live(gateway) as session:
        gateway.stop()
        assert until(lambda: httpx.get(gateway.url + "/ready").status_code == 503, what="unready")
        until(lambda: refuses(gateway), what="the gateway to accept nobody any more")
        for number in range(3):
            session.send(f"still {number}")
            assert session.recv() == f"still {number}"
        assert gateway.process.poll() is None
    assert gateway.ended() == 0


def refuses(server: Server) -> bool:
    try:
        httpx.get(server.url + "/ready")
    except httpx.ConnectError:
        return True
    except httpx.TransportError:  # accepted, and closed before its request came
        return False
    return False


def test_a_live_session_that_stays_is_told_why_it_ends(service: Any, front: Any) -> None:
    gateway = front(0.5, speech=service(60))
    with live(gateway) as session:
        session.send("hello")
        assert session.recv() == "hello"
        gateway.stop()
        told = json.loads(session.recv())
        assert (told["type"], told["error"]["code"]) == ("error", "unavailable")
        assert "stopping" in told["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            session.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    assert gateway.ended() == 0


def test_it_is_not_ready_before_it_stops_to_accept(service: Any) -> None:
    server = service(30, unready_s=2)
    assert httpx.get(server.url + "/ready").status_code == 200
    server.stop()
    ready = until(lambda: (answer := httpx.get(server.url + "/ready")).status_code == 503 and answer, what="unready")
    assert ready.json()["status"] == "draining"
    body = {"model": "clock", "seconds": 0, "messages": []}
    assert httpx.post(server.url + CHAT, json=body).status_code == 200, "who has not heard yet is served"
    assert server.ended() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/ready")


def test_a_request_to_a_draining_replica_goes_to_another(service: Any, front: Any, clients: ThreadPoolExecutor) -> None:
    replicas = [service(30), service(30)]
    gateway = front(30, *replicas)
    streams = opened(clients, gateway, 2.0, 2.0)
    replicas[0].stop()
    body = {"model": "clock", "seconds": 0, "messages": []}
    for _ in range(20):
        assert httpx.post(gateway.url + CHAT, json=body).status_code == 200
    assert all(whole(stream.result(), 2.0) for stream in streams)
    assert replicas[0].ended() == 0
    replicas[1].stop()
    assert replicas[1].ended() == 0
    answer = httpx.post(gateway.url + CHAT, json=body)
    assert answer.status_code == 503
    assert answer.headers["x-should-retry"] == "true"


def test_a_second_signal_ends_at_once(service: Any, clients: ThreadPoolExecutor) -> None:
    server = service(60)
    (stream,) = opened(clients, server, 60.0)
    server.stop()
    time.sleep(0.7)  # signals within half a second count as one
    assert server.process.poll() is None
    server.stop()
    server.process.wait(10)
    with pytest.raises(httpx.TransportError):
        stream.result()
