"""A body that never comes, or that drips, ends its connection; a large one on a slow line does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar, post
from prometheus_client import CollectorRegistry
from tests.shared.web.served import served

from tessera.errors import AuthenticationError
from tessera.settings.http import HttpSettings
from tessera.web.app import build_app
from tessera.web.dependencies import HTTPRequest

IDLE_S = 0.6
HTTP = HttpSettings(body_idle_s=IDLE_S, body_bytes_per_s=1000)


@post("/v1/count", status_code=200)
async def count(request: HTTPRequest) -> dict[str, int]:
    return {"bytes": len(await request.body())}


@post("/v1/late", status_code=200)
async def late(request: HTTPRequest) -> dict[str, int]:
    await asyncio.sleep(3 * IDLE_S)  # longer than a client may be silent
    return {"bytes": len(await request.body())}


@post("/v1/refused", status_code=200)
async def refused(request: HTTPRequest) -> None:
    raise AuthenticationError("no")


async def ready() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    app: Litestar = build_app("test", [count, late, refused], ready=ready, registry=CollectorRegistry(), description="")
    with served(app, HTTP) as port:
        yield port


class Client:
    """One connection that sends bytes when it is told to."""

    def __init__(self, port: int, path: str, length: int | None) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), timeout=20)
        size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        self.line.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{size}\r\n\r\n".encode())
        self.began = time.monotonic()

    def drip(self, piece: bytes, times: int, every_s: float) -> None:
        with contextlib.suppress(OSError):  # the server has closed the connection
            for _ in range(times):
                self.line.sendall(piece)
                time.sleep(every_s)  # the line's speed is what the test is about

    def answer(self) -> tuple[int, dict[str, Any], float]:
        """Status and body of the answer, and the seconds until the server closed the connection or answered 200."""
        received = b""
        try:
            while piece := self.line.recv(65536):
                received += piece
                if received.startswith(b"HTTP/1.1 200") and received.endswith(b"}"):
                    break
        except ConnectionResetError:
            pass
        self.line.close()
        head, _, body = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body), time.monotonic() - self.began


@pytest.mark.parametrize("length", [100, None])
@pytest.mark.parametrize("begun", [b"", b"1\r\nx\r\n"])
def test_a_body_that_never_comes_is_answered_408_and_closed(port: int, length: int | None, begun: bytes) -> None:
    client = Client(port, "/v1/count", length)
    client.line.sendall(begun)
    status, body, seconds = client.answer()
    assert status == 408
    assert body["error"]["code"] == "request_timeout"
    assert "http.body_idle_s" in body["error"]["message"]
    assert 0.9 * IDLE_S <= seconds < 10 * IDLE_S


@pytest.mark.slow
def test_a_body_that_drips_is_answered_408_though_it_is_never_silent(port: int) -> None:
    client = Client(port, "/v1/count", 1000)
    client.drip(b"x", 12, IDLE_S / 8)
    status, body, seconds = client.answer()
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert seconds < 10 * IDLE_S


@pytest.mark.slow
def test_a_large_body_on_a_slow_line_is_read_to_its_end(port: int) -> None:
    client = Client(port, "/v1/count", 16_000)
    client.drip(b"x" * 1000, 16, IDLE_S / 4)
    status, body, seconds = client.answer()
    assert (status, body) == (200, {"bytes": 16_000})
    assert seconds > 3 * IDLE_S, "longer than a silent client may wait"


@pytest.mark.slow
def test_a_server_that_reads_late_does_not_blame_the_client(port: int) -> None:
    client = Client(port, "/v1/late", 1_000_000)
    client.line.sendall(b"x" * 1_000_000)
    assert client.answer()[:2] == (200, {"bytes": 1_000_000})


@pytest.mark.slow
def test_a_body_that_drips_behind_its_answer_keeps_no_connection_open(port: int) -> None:
    client = Client(port, "/v1/refused", 1000)
    status, body, seconds = client.answer()
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert seconds < 10 * IDLE_S
