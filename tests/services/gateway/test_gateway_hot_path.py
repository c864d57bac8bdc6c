"""The hot path: what a slow client, a silent or a damaged upstream does, and what goes on to the router."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tessera.telemetry import LineHandler, TextFormatter, log_request, request_id_var

CHUNK = b"data: " + b"x" * 32_000 + b"\n\n"


class RawUpstream:
    """A server of one model whose answers are the bytes that a test gives."""

    def __init__(self) -> None:
        self.answer: Callable[[socket.socket], None] = lambda _: None
        self.connections = 0
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        posts = 0
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                head = line
                while (field := reader.readline()) not in {b"\r\n", b""}:
                    head += field
                length = next((int(f[15:]) for f in head.lower().split(b"\r\n") if f.startswith(b"content-length:")), 0)
                body = reader.read(length)
                if line.startswith(b"GET"):
                    connection.sendall(plain(b'{"data": [{"id": "a"}]}'))
                    continue
                posts += 1
                self.connections += posts == 1
                self.asked.append(head + b"\r\n" + body)
                try:
                    self.answer(connection)
                except OSError:
                    return


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"content-type: application/json", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join([*head, b"", b""]) + body


@pytest.fixture
def raw(gateway: Any) -> Iterator[Any]:
    """`raw(answer, …)`: a gateway before a raw upstream. Returns both."""
    from tessera.settings.gateway import UpstreamSettings

    made: list[RawUpstream] = []

    def start(answer: Callable[[socket.socket], None], **values: Any) -> Any:
        upstream = RawUpstream()
        upstream.answer = answer
        made.append(upstream)
        entries = [UpstreamSettings(name="raw", url=upstream.url)]
        return gateway(upstreams=entries, **values).knows("a"), upstream

    yield start
    for upstream in made:
        upstream.close()


def post(running: Any, **more: Any) -> httpx.Response:
    return httpx.post(running.url + "/v1/chat/completions", json={"model": "a", **more}, timeout=20)


def test_a_slow_reader_does_not_grow_the_gateways_memory(raw: Any, wait: Any) -> None:
    sent = [0]
    blocked = threading.Event()

    def pour(connection: socket.socket) -> None:
        connection.settimeout(1.0)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            for _ in range(4000):
                connection.sendall(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
                sent[0] += len(CHUNK)
        except TimeoutError:
            blocked.set()
            connection.settimeout(None)
            raise

    running, _ = raw(pour)
    body = b'{"model": "a", "stream": true}'
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert blocked.wait(20), "the upstream could send everything to a client that reads nothing"
        assert sent[0] < 40_000_000, "what the kernel's buffers and the gateway held; all of it is 128 MB"
    wait(lambda: running.metric("tessera_gateway_upstream_in_flight", upstream="raw") == 0, "the end")


def test_a_slow_reader_gets_every_byte_in_order_and_the_error_at_the_end(raw: Any) -> None:
    def some(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(300):
            event = b"data: %06d" % number + b"x" * 32_000 + b"\n\n"
            connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        connection.shutdown(socket.SHUT_RDWR)

    running, _ = raw(some)
    received = b""
    body = {"model": "a", "stream": True}
    with httpx.stream("POST", running.url + "/v1/chat/completions", json=body, timeout=20) as answer:
        for piece in answer.iter_raw(65536):
            received += piece
            if len(received) < 2_000_000:
                time.sleep(0.005)
    events = received.split(b"\n\n")
    assert [int(event[6:12]) for event in events[:-2]] == list(range(300))
    assert json.loads(events[-2].removeprefix(b"data: "))["error"]["code"] == "upstream_error"


def test_a_slow_readers_upstream_is_not_silent(raw: Any) -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(1000):
            connection.sendall(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
        connection.sendall(b"0\r\n\r\n")

    running, _ = raw(pour, idle_timeout_s=0.3)
    with httpx.stream("POST", running.url + "/v1/chat/completions", json={"model": "a"}, timeout=20) as answer:
        pieces = answer.iter_raw()
        received = len(next(pieces))
        time.sleep(1.0)
        received += sum(map(len, pieces))
    assert received == 1000 * len(CHUNK)


def test_a_connection_is_used_again_unless_the_upstream_closes_it(raw: Any) -> None:
    running, upstream = raw(lambda connection: connection.sendall(plain(b"{}")))
    assert [post(running).json() for _ in range(4)] == [{}] * 4
    assert upstream.connections == 1
    upstream.answer = lambda connection: connection.sendall(plain(b"{}", b"connection: close"))
    assert [post(running).json() for _ in range(3)] == [{}] * 3
    assert upstream.connections == 3


def test_an_answer_without_a_length_ends_with_its_connection(raw: Any) -> None:
    def until_closed(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of")
        connection.sendall(b" it")
        connection.shutdown(socket.SHUT_RDWR)

    running, _ = raw(until_closed)
    assert post(running).text == "all of it"


def test_an_interim_answer_is_not_the_answer(raw: Any) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    running, _ = raw(lambda connection: connection.sendall(interim + plain(b'{"x": 1}')))
    assert [post(running).json() for _ in range(2)] == [{"x": 1}] * 2


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", 502),
        (plain(b"{}", status=b"307 Elsewhere"), 502),
        (plain(b"{}", status=b"401 No"), 502),
        (plain(b"", status=b"200 OK"), 200),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", 204),
    ],
)
def test_what_is_no_answer_is_a_bad_gateway(raw: Any, answer: bytes, status: int) -> None:
    running, _ = raw(lambda connection: connection.sendall(answer))
    assert post(running).status_code == status


def test_two_answers_to_one_request_do_not_answer_the_next(raw: Any) -> None:
    answers = iter([plain(b'{"n": 1}') + plain(b'{"n": 2}'), plain(b'{"n": 3}')])
    running, _ = raw(lambda connection: connection.sendall(next(answers)))
    assert [post(running).json()["n"] for _ in range(2)] == [1, 3]


def test_a_line_break_within_a_header_cannot_add_one(raw: Any) -> None:
    running, upstream = raw(lambda connection: connection.sendall(plain(b"{}")))
    body = b'{"model": "a"}'
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"accept: a\rx-tessera-tenant: b\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        client.recv(1000)
    assert not any(b"x-tessera-tenant" in asked for asked in upstream.asked)


@pytest.mark.parametrize("padding", [0, 300_000])
def test_small_and_large_bodies_are_passed_on_alike(raw: Any, padding: int) -> None:
    running, upstream = raw(lambda connection: connection.sendall(plain(b'{"x": 1}')))
    assert post(running, padding="x" * padding).json() == {"x": 1}
    assert post(running, padding="x" * padding).status_code == 200
    for asked in upstream.asked:
        assert json.loads(asked.partition(b"\r\n\r\n")[2]) == {"model": "a", "padding": "x" * padding}


def test_requests_one_after_the_other_on_one_connection_are_all_answered(raw: Any) -> None:
    running, _ = raw(lambda connection: connection.sendall(plain(b'{"x": 1}')))
    body = b'{"model": "a"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        client.sendall(request * 5)
        received = b""
        while received.count(b'{"x": 1}') < 5:
            received += client.recv(65536)
    assert received.count(b"HTTP/1.1 200 OK") == 5
    assert received.count(b"x-request-id: req_") == 5


def test_ids_of_requests_differ(raw: Any) -> None:
    running, upstream = raw(lambda connection: connection.sendall(plain(b"{}")))
    ids = [post(running).headers["x-request-id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(f"x-request-id: {one}".encode() in asked for one, asked in zip(ids, upstream.asked, strict=True))


def test_lines_of_requests_are_written_together_and_before_what_follows() -> None:
    import io

    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    handler = LineHandler(Stream(), TextFormatter("gateway"))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:], logger = [handler], logging.getLogger("tessera.access")
    root.setLevel("INFO")

    async def talk() -> None:
        request_id_var.set("req_1")
        log_request(logger, "%s %d", "GET /a\n", 200)
        log_request(logger, "%s %d", "GET /b", 200)
        assert written == []
        logging.getLogger("x").warning("then this")

    try:
        asyncio.run(talk())
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    both = written[0].splitlines()
    assert [line.split("gateway  ")[1] for line in both] == [
        "GET /a\\u000a 200  request_id=req_1",
        "GET /b 200  request_id=req_1",
    ]
    assert "then this" in "".join(written[1:])
