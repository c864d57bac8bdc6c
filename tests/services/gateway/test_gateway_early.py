"""Requests that are answered below the app, byte by byte: heads and bodies in pieces, pipelines, limits, ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.http import HttpSettings
from tessera.settings.text import TextSettings
from tessera.settings.tree import Settings
from tessera_gateway.hot.connections import ConnectionPool
from tessera_gateway.hot.path import HotPath

KEY = "sk-one-0123456789"
PATH = b"/v1/chat/completions"


def request(body: bytes = b'{"model": "a"}', *headers: bytes, path: bytes = PATH, version: bytes = b"1.1") -> bytes:
    lines = [b"POST %b HTTP/%b" % (path, version), b"host: x", b"content-type: application/json", *headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


@contextlib.contextmanager
def line_to(running: Any) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield line


def answers(line: socket.socket, count: int) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """The next answers of a connection, each with a length."""
    found, data = [], b""
    while len(found) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        fields = dict(field.split(b": ", 1) for field in head.split(b"\r\n")[1:]) if end else {}
        length = int(fields.get(b"content-length", 0))
        if end and len(rest) >= length:
            found.append((int(head.split()[1]), fields, rest[:length]))
            data = rest[length:]
            continue
        more = line.recv(65536)
        assert more, f"the connection was closed behind {found} and {data!r}"
        data += more
    assert data == b""
    return found


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def running(gateway: Any, upstream: Any) -> Any:
    return gateway(upstream("a"))


@pytest.fixture
def bounded(gateway_of: Any, upstream: Any) -> Callable[..., Any]:
    """`bounded(body_idle_s=…)`: a gateway with settings of `http`."""

    def start(**values: Any) -> Any:
        entries = [UpstreamSettings(name="fake", url=upstream("a").url)]
        front = GatewaySettings(services=[], upstreams=entries, aliases={})
        return gateway_of(Settings(gateway=front, http=HttpSettings(**values))).knows("a")

    return start


def test_a_request_in_pieces_of_a_byte_is_answered(gateway: Any, upstream: Any) -> None:
    fake = upstream("a")
    running = gateway(fake)
    body = json.dumps({"model": "a", "x": "é" * 20}).encode()
    with line_to(running) as line:
        for byte in request(body, b"x-request-id: mine"):
            line.sendall(bytes([byte]))
        status, headers, _ = answers(line, 1)[0]
    assert (status, headers[b"x-request-id"]) == (200, b"mine")
    assert fake.requests[-1][2] == body
    labels = {"route": PATH.decode(), "status": "200", "method": "POST"}
    assert running.metric("tessera_http_requests_total", **labels) == 1
    assert running.metric("tessera_http_requests_in_flight") == 1, "that of the metrics"
    assert running.metric("tessera_http_body_memory_bytes") == 0


def test_requests_of_all_kinds_on_one_connection_are_answered_in_their_order(running: Any) -> None:
    health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    unknown = request(b'{"model": "unknown"}')
    with line_to(running) as line:
        line.sendall(request() + health + unknown + request() + request() + health)
        together = [status for status, _, _ in answers(line, 6)]
        each = []
        for one in (health, request(), unknown, request()):
            line.sendall(one)
            each += [status for status, _, _ in answers(line, 1)]
    assert together == [200, 200, 404, 200, 200, 200]
    assert each == [200, 200, 404, 200]


@pytest.mark.parametrize("head", [b"authorization: Bearer wrong", b"accept: */*"])
def test_a_request_without_an_accepted_key_is_refused_before_its_body(gateway: Any, upstream: Any, head: bytes) -> None:
    running = gateway(upstream("a"), api_keys=[KEY])
    with line_to(running) as line:
        line.sendall(request(b"x" * 1000, head)[:-900])
        status, _, body = answers(line, 1)[0]
    assert status == 401
    assert json.loads(body)["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(("header", "status"), [(b"origin: https://evil.example", 403), (b"host: evil.example", 421)])
def test_a_web_page_of_another_site_is_refused(running: Any, header: bytes, status: int) -> None:
    whole = request(b'{"model": "a"}', header)
    with line_to(running) as line:
        line.sendall(whole.replace(b"host: x\r\n", b"") if header.startswith(b"host") else whole)
        assert answers(line, 1)[0][0] == status


def test_bodies_that_have_not_arrived_whole_count_in_the_budget(bounded: Any, wait: Any) -> None:
    running = bounded(body_memory_bytes=200_000)
    body = json.dumps({"model": "a", "x": "y" * 149_000}).encode()
    half = request(body)[:120_000]
    with line_to(running) as first:
        first.sendall(half)
        wait(lambda: running.metric("tessera_http_body_memory_bytes") > 100_000, "the count")
        with line_to(running) as second:
            second.sendall(request(body))
            status, headers, answer = answers(second, 1)[0]
            assert status == 429
            assert int(headers[b"retry-after"]) >= 1
            assert "http.body_memory_bytes" in json.loads(answer)["error"]["message"]
        with line_to(running) as third:
            third.sendall(half)
            assert answers(third, 1)[0][0] == 429, "before its end"
    wait(lambda: running.metric("tessera_http_body_memory_bytes") == 0, "the memory")
    with line_to(running) as line:
        line.sendall(request(body))
        assert answers(line, 1)[0][0] == 200


def test_a_body_that_stops_coming_is_given_up(bounded: Any) -> None:
    running = bounded(body_idle_s=0.4)
    with line_to(running) as line:
        line.sendall(request()[:-5])
        status, _, answer = answers(line, 1)[0]
        assert status == 408
        assert "http.body_idle_s" in json.loads(answer)["error"]["message"]
        assert is_closed(line)


def test_a_client_that_reads_no_answer_is_not_answered_for_ever(gateway: Any, upstream: Any, wait: Any) -> None:
    fake = upstream("a")
    running = gateway(fake)
    whole = request(json.dumps({"model": "a", "headers": {"retry-after": "9" * 8000}}).encode())
    with line_to(running) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        line.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 20_000:
                line.sendall(whole)
                sent += 1
        assert sent < 20_000, "the server reads no more"
        assert len(fake.requests) < 2000, "what the kernel's buffers hold; all of it is 160 MB"
    wait(lambda: running.metric("tessera_http_requests_in_flight") == 1, "the end of all but that of the metrics")


def test_a_connection_that_was_closed_when_it_is_used_says_so() -> None:
    class Listener:
        broken: asyncio.Future[Exception]

        def took(self, data: bytes, *, ended: bool) -> None:
            raise AssertionError

        def broke(self, error: Exception) -> None:
            self.broken.set_result(error)

    async def talk() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = ConnectionPool(f"http://127.0.0.1:{port}", connect_timeout_s=5, idle_timeout_s=60)
        connection = await pool.connect()
        while not connection.closed:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        listener = Listener()
        listener.broken = asyncio.get_running_loop().create_future()
        connection.send(b"POST / HTTP/1.1\r\n\r\n", b"", listener)
        assert isinstance(await asyncio.wait_for(listener.broken, 5), ConnectionResetError)
        pool.close()
        server.close()

    asyncio.run(talk())


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(running: Any) -> None:
    body = b'{"model": "a"}'
    with line_to(running) as line:
        line.sendall(request(body, b"expect: 100-continue")[: -len(body)])
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(body)
        assert answers(line, 1)[0][0] == 200


@pytest.mark.parametrize("whole", [request(b'{"model": "a"}', b"connection: close"), request(version=b"1.0")])
def test_a_connection_that_ends_with_its_request_is_closed(running: Any, whole: bytes) -> None:
    with line_to(running) as line:
        line.sendall(whole)
        status, headers, _ = answers(line, 1)[0]
        assert (status, headers[b"connection"]) == (200, b"close")
        assert is_closed(line)


def test_a_head_that_is_too_large_is_refused(running: Any) -> None:
    with line_to(running) as line:
        line.sendall(request(b'{"model": "a"}', b"x-long: " + b"y" * 66_000))
        assert answers(line, 1)[0][0] == 431
    with line_to(running) as line:
        line.sendall(request(b'{"model": "a", "x": "%b"}' % (b"y" * 100_000)))
        assert answers(line, 1)[0][0] == 200, "a long body is no long head"


def test_an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not(gateway: Any, upstream: Any) -> None:
    fake = upstream("a")
    running = gateway(fake)
    running._server.config.timeout_keep_alive = 0.5
    with line_to(running) as line:
        line.sendall(request())
        answers(line, 1)
        line.sendall(request(b'{"model": "a", "behave": "silent"}'))
        assert fake.began.wait(5)
        time.sleep(1.2)  # time itself is the matter
        fake.go_on.set()
        assert answers(line, 1)[0][0] == 200
        began = time.monotonic()
        assert is_closed(line)
        assert 0.3 < time.monotonic() - began < 5


def test_a_request_that_is_arriving_when_the_server_stops_is_answered(running: Any) -> None:
    whole = request()
    with line_to(running) as line:
        line.sendall(whole[:-5])
        running._server.should_exit = True
        time.sleep(0.3)  # the server looks at it a few times a second
        line.sendall(whole[-5:])
        assert answers(line, 1)[0][0] == 200
        assert is_closed(line)


def test_a_silent_answer_is_ended_when_the_servers_time_is_over(gateway: Any, upstream: Any) -> None:
    running = gateway(upstream("a"))
    running._server.drain_s = 0.2
    with line_to(running) as line:
        line.sendall(request(b'{"model": "a", "behave": "silent"}'))
        running._server.should_exit = True
        status, headers, answer = answers(line, 1)[0]
        assert (status, headers[b"connection"]) == (503, b"close")
        assert "stopping" in json.loads(answer)["error"]["message"]
        assert is_closed(line)


@pytest.fixture
def of_ours(gateway_of: Any, upstream: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A gateway before a text service, the fake service, and a list that gets each request that is answered early."""
    early: list[str] = []
    answer = HotPath.answer

    def noted(self: HotPath, client: Any, head: Any, body: bytes) -> Any:
        if (taken := answer(self, client, head, body)) is not None:
            early.append(head.url.decode())
        return taken

    monkeypatch.setattr(HotPath, "answer", noted)
    fake = upstream(model("a", "chat"), name="text")
    front = GatewaySettings(services=["text"], aliases={})
    settings = Settings(gateway=front, text=TextSettings(port=fake.port))
    return gateway_of(settings).knows("a"), fake, early


def test_messages_of_our_service_pass_below_the_app_in_anthropics_shapes(of_ours: Any) -> None:
    running, fake, early = of_ours
    told = {"model": "a", "max_tokens": 9, "messages": []}
    url = running.url + "/v1/messages"
    answer = httpx.post(url, json=told)
    assert answer.json() == {"from": "text"}
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert fake.requests[-1][0] == "/v1/messages"
    assert fake.requests[-1][1]["x-tessera-tenant"] == "anonymous"
    died = httpx.post(url, json={**told, "behave": "die"})
    assert (died.status_code, died.json()["error"]["type"]) == (502, "api_error")
    assert died.headers.get_list("request-id") == [died.json()["request_id"]]
    cut = httpx.post(url, json={**told, "behave": "stream", "cut_after": 3}).content.split(b"\n\n")
    assert cut[-2].startswith(b"event: error\ndata: ")
    assert json.loads(cut[-2].partition(b"data: ")[2])["type"] == "error"
    assert early == ["/v1/messages"] * 3


def test_responses_that_keep_nothing_pass_below_the_app_and_others_do_not(of_ours: Any) -> None:
    running, fake, early = of_ours
    told = {"model": "a", "input": "Hello", "store": False}
    url = running.url + "/v1/responses"
    assert httpx.post(url, json=told).json() == {"from": "text"}
    assert early == ["/v1/responses"]
    assert json.loads(fake.requests[-1][2]) == told
    for more in ({"store": None}, {"previous_response_id": "resp_1"}, {"background": True}, {"store": 1}):
        httpx.post(url, json={**told, **more})
    item = {"type": "item_reference", "id": "msg_1"}
    httpx.post(url, json={**told, "input": [item]})
    assert early == ["/v1/responses"], "a handler has the others"


def test_a_response_that_is_cut_ends_with_the_typed_event(of_ours: Any) -> None:
    running, fake, early = of_ours
    told = {"model": "a", "input": "Hello", "store": False, "stream": True, "behave": "stream"}
    url = running.url + "/v1/responses"
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress"}}
    delta = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"}
    done = {"type": "response.completed", "sequence_number": 2, "response": {"id": "resp_1", "status": "completed"}}
    whole = [b"data: %b\n\n" % json.dumps(one).encode() for one in (created, delta, done)]

    def events(count: int, **more: Any) -> list[dict[str, Any]]:
        fake.events = whole[:count]
        data = httpx.post(url, json={**told, **more}).content
        return [json.loads(one.partition(b"data: ")[2]) for one in data.split(b"\n\n") if one]

    assert events(3) == [created, delta, done]
    last = events(3, cut_after=2)[-1]
    assert (last["type"], last["sequence_number"]) == ("response.failed", 2)
    assert (last["response"]["id"], last["response"]["status"]) == ("resp_1", "failed")
    assert "cut the connection" in last["response"]["error"]["message"]
    assert len(early) == 2
