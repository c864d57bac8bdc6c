"""Errors that no handler raises are in the envelope of the request's protocol: Anthropic's under `/v1/messages`."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.services.gateway.chat_upstreams import ChatUpstream
from tests.waiting import until

from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.http import HttpSettings
from tessera.settings.tree import Settings

ASKED = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
STARTED = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
FIRST = b"event: message_start\ndata: " + json.dumps(STARTED).encode() + b"\n\n"
PATH = "/v1/messages"


@pytest.fixture
def foreign() -> Iterator[ChatUpstream]:
    """A server that has Anthropic's route itself, so that its bytes are passed on."""
    one = ChatUpstream("m").start()
    yield one
    one.close()


@pytest.fixture
def front(gateway_of: Any, foreign: ChatUpstream) -> Callable[..., Any]:
    """Starts gateways in front of `foreign`: `front(body_idle_s=…)`, by settings of HTTP."""

    def start(**http: Any) -> Any:
        entries = [UpstreamSettings(name=foreign.name, url=foreign.url)]
        gateway = GatewaySettings(services=[], upstreams=entries, aliases={})
        return gateway_of(Settings(gateway=gateway, http=HttpSettings(**http))).knows("m")

    return start


def error_of(told: dict[str, Any]) -> str:
    assert (set(told), told["type"], set(told["error"])) == (
        {"type", "error", "request_id"},
        "error",
        {"type", "message"},
    )
    return str(told["error"]["type"])


def last_event(stream: str) -> dict[str, Any]:
    name, data = stream.removesuffix("\n\n").rsplit("\n\n", 1)[-1].split("\n")
    assert name == "event: error"
    return json.loads(data.removeprefix("data: "))  # type: ignore[no-any-return]


def test_a_stream_that_its_upstream_cuts_ends_with_anthropics_event(front: Any, foreign: ChatUpstream) -> None:
    foreign.native[PATH] = [FIRST, RuntimeError("cut")]
    answer = httpx.post(front().url + PATH, json={**ASKED, "stream": True})
    assert answer.content.startswith(FIRST)
    told = last_event(answer.text)
    assert error_of(told) == "api_error"
    assert "cut the connection" in told["error"]["message"]


def test_a_silent_stream_ends_with_anthropics_event(gateway: Any, foreign: ChatUpstream) -> None:
    foreign.native[PATH] = [FIRST, ...]
    answer = httpx.post(gateway(foreign, idle_timeout_s=0.3).url + PATH, json={**ASKED, "stream": True})
    assert error_of(last_event(answer.text)) == "timeout_error"


def test_what_a_stopping_gateway_cannot_finish_is_told_so_in_anthropics_shapes(
    front: Any, foreign: ChatUpstream
) -> None:
    foreign.native = {PATH: [FIRST, ...], PATH + "/count_tokens": [...]}
    running = front(drain_s=0.2)
    with ThreadPoolExecutor() as clients:
        stream = clients.submit(httpx.post, running.url + PATH, json=ASKED, timeout=30)
        plain = clients.submit(httpx.post, running.url + PATH + "/count_tokens", json=ASKED, timeout=30)
        until(lambda: len(foreign.requests) == 2, what="both requests to begin")
        running.stop()
        assert error_of(last_event(stream.result().text)) == "api_error"
    answer = plain.result()
    assert (answer.status_code, error_of(answer.json())) == (503, "api_error")
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"host": "rebound.evil.example"}, 421, "invalid_request_error"),
        ({"origin": "https://evil.example"}, 403, "permission_error"),
    ],
)
def test_a_foreign_page_is_refused_in_anthropics_envelope(front: Any, headers: Any, status: int, kind: str) -> None:
    url = front().url
    for path in (PATH, PATH + "/count_tokens"):
        answer = httpx.post(url + path, json=ASKED, headers=headers)
        assert (answer.status_code, error_of(answer.json())) == (status, kind)
        assert answer.headers["request-id"] == answer.json()["request_id"]
    answer = httpx.post(url + "/v1/chat/completions", json=ASKED, headers=headers)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})
    answer = httpx.post(url + "/api/chat", json=ASKED, headers=headers)
    assert (answer.status_code, type(answer.json()["error"])) == (status, str)


def test_a_body_over_the_budget_is_refused_in_anthropics_envelope(front: Any, foreign: ChatUpstream) -> None:
    foreign.native[PATH] = [FIRST, ...]
    url = front(body_memory_bytes=1_000_000).url
    large = {**ASKED, "system": "x" * 700_000}
    left = threading.Event()
    with ThreadPoolExecutor() as clients:

        def hold() -> None:
            with httpx.stream("POST", url + PATH, json=large, timeout=30) as held:
                pieces = held.iter_raw()  # whose end closes the connection
                next(pieces)
                left.wait(20)

        clients.submit(hold)
        try:
            assert foreign.began.wait(10)
            answer = httpx.post(url + PATH, json=large)
        finally:
            left.set()
    assert (answer.status_code, error_of(answer.json())) == (529, "overloaded_error")
    assert int(answer.headers["retry-after"]) >= 1


def test_a_body_that_never_comes_is_refused_in_anthropics_envelope(front: Any) -> None:
    running = front(body_idle_s=0.5)
    received = b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as line:
        line.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 9\r\n\r\n{"
        )
        while piece := line.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert error_of(json.loads(body)) == "invalid_request_error"
