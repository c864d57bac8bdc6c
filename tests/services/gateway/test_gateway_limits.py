"""What is refused before any work: damaged, oversized or wrongly typed requests."""

from __future__ import annotations

import socket

import httpx
import pytest

JSON = {"content-type": "application/json"}


@pytest.fixture
def small(gateway, upstream, model):
    fake = upstream("a", model("ears", "transcription"))
    running = gateway(fake, max_json_bytes=10_000, max_body_bytes=50_000)
    running.fake = fake
    return running


def refused(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.headers["x-request-id"]
    return error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "a"', b'{"model": "a"}}', b"\xff\xfe", b'{"model": "\xff"}'])
def test_a_body_that_is_not_json_is_refused(small, body):
    answer = httpx.post(small.url + "/v1/chat/completions", content=body, headers=JSON)
    refused(answer, 400, "invalid_json")
    assert small.fake.requests == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "missing_required_parameter"),
        (b'{"model": null}', "invalid_value"),
        (b'{"model": 3}', "invalid_value"),
        (b'{"model": ""}', "invalid_value"),
        (b'["model"]', "invalid_value"),
        (b'{"model": "%s"}' % (b"x" * 600), "invalid_value"),
    ],
)
def test_a_body_without_a_model_name_is_refused(small, body, code):
    refused(httpx.post(small.url + "/v1/completions", content=body, headers=JSON), 400, code)


def test_json_that_nests_too_deep_is_refused(small):
    body = b'{"model": "a", "x": ' + b"[" * 4000 + b"]" * 4000 + b"}"
    answer = httpx.post(small.url + "/v1/completions", content=body, headers=JSON)
    refused(answer, 400, "invalid_json")


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_routes_take_json_only(small, given):
    answer = httpx.post(small.url + "/v1/chat/completions", content=b'{"model":"a"}', headers={"content-type": given})
    assert "application/json" in refused(answer, 415, "unsupported_media")


def test_a_form_route_takes_forms_only(small):
    answer = httpx.post(small.url + "/v1/audio/transcriptions", json={"model": "ears"})
    assert "multipart/form-data" in refused(answer, 415, "unsupported_media")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x\r\n",
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--x--\r\n',
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nears',
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nears\r\n--x--\r\n',
        b'--x\r\ncontent-disposition: form-data; name="model"; filename="a"\r\n\r\nears\r\n--x--\r\n',
    ],
)
def test_a_damaged_form_is_refused(small, body):
    answer = httpx.post(
        small.url + "/v1/audio/transcriptions",
        content=body,
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert small.fake.requests == []


def test_an_oversized_body_is_refused_by_its_announced_length(small):
    body = b'{"model": "a", "x": "' + b"y" * 10_000 + b'"}'
    answer = httpx.post(small.url + "/v1/chat/completions", content=body, headers=JSON)
    refused(answer, 413, "payload_too_large")


def test_an_oversized_body_is_refused_without_an_announced_length(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"y" * 4096 + b"\r\n") * 3
        )
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"payload_too_large" in answer
    assert small.fake.requests == []


def test_forms_have_a_limit_of_their_own(small):
    def post(size: int) -> httpx.Response:
        return httpx.post(
            small.url + "/v1/audio/transcriptions", data={"model": "ears"}, files={"file": ("a", b"x" * size)}
        )

    assert post(20_000).status_code == 200
    refused(post(50_000), 413, "payload_too_large")


def test_a_chunked_body_within_the_limit_passes(small):
    def pieces():
        yield b'{"model"'
        yield b': "a"}'

    assert httpx.post(small.url + "/v1/chat/completions", content=pieces(), headers=JSON).status_code == 200
    assert small.fake.requests[0][2] == b'{"model": "a"}'


@pytest.mark.parametrize("headers", [[(f"x-{n}", "y" * 1000) for n in range(100)], [("x", "y" * 100_000)]])
def test_an_oversized_head_is_refused(small, headers):
    with httpx.Client() as http:
        answer = http.get(small.url + "/v1/models", headers=headers)
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "header_too_large"


def test_a_head_that_never_ends_is_cut(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        received = b""
        try:
            for _ in range(10_000):
                connection.sendall(b"x: " + b"y" * 4096 + b"\r\n")
            received = connection.recv(4096)
        except OSError:
            pass
        else:
            assert received.startswith(b"HTTP/1.1 431")
    assert httpx.get(small.url + "/health").status_code == 200


def test_a_head_that_dawdles_is_cut(small, monkeypatch):
    monkeypatch.setattr("tessera.web.protocol.HEAD_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
        assert connection.recv(4096) == b""
    with httpx.Client(base_url=small.url) as http:
        assert [http.get("/health").status_code for _ in range(3)] == [200, 200, 200]


def test_what_is_not_http_is_answered_in_the_envelope(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"invalid_http" in answer


def test_an_unknown_route_and_a_wrong_verb_are_answered_in_the_envelope(small):
    refused(httpx.get(small.url + "/v2/nothing"), 404, "not_found")
    refused(httpx.get(small.url + "/v1/chat/completions"), 405, "method_not_allowed")
