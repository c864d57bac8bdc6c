"""Whatever is sent, the gateway answers in OpenAI's envelope, never with a 500, and serves on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TEXT = "smollm2-135m-instruct"
CHAT = "/v1/chat/completions"
JSON_ROUTES = (CHAT, "/v1/completions", "/v1/embeddings", "/v1/audio/speech", "/v1/videos")
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
HELLO = [{"role": "user", "content": "hi"}]

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer that must be the client's fault."""
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text[:500]}"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "rate_limit_error"), error
    assert error["code"]
    assert answer.headers["x-request-id"]
    return error


@pytest.fixture(scope="module")
def client(suite: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=suite.base_url, timeout=60) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def _serves_on(suite: Any) -> Iterator[None]:
    """After all of this nothing has died, and an answer is right."""
    before = suite.pids("tessera_")
    yield
    answer = suite.sdk().completions.create(model=TEXT, prompt="The sun rises in the", max_tokens=2, temperature=0)
    assert answer.choices[0].text.startswith(" sky")
    assert suite.pids("tessera_") == before, "a process was replaced"


@pytest.mark.parametrize("route", JSON_ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model": "\xe9"}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"model":' * 50_000,
        b'{"model": "x"} trailing',
        b'{"model": 1e999}',
        b"NaN",
    ],
    ids=[
        "empty",
        "cut",
        "null",
        "list",
        "text",
        "utf16",
        "latin1",
        "surrogate",
        "deep",
        "nested",
        "two",
        "huge",
        "nan",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, route: str, body: bytes) -> None:
    check(client.post(route, content=body, headers=JSON))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": "gpt-17"}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"stop": ["x" * 257]}, "stop[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"functions": []}, "functions"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
    ],
)
def test_a_field_that_is_wrong_is_named(client: httpx.Client, changes: dict[str, Any], param: str) -> None:
    body = {"model": TEXT, "messages": HELLO, "max_tokens": 1, **changes}
    error = check(client.post(CHAT, json=body))
    assert (error["param"] or "").replace("[...]", "[0]") == param


@pytest.mark.parametrize("route", [*JSON_ROUTES, "/v1/audio/transcriptions"])
@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_content_type_that_is_not_taken_is_refused(client: httpx.Client, route: str, content_type: str) -> None:
    answer = client.post(route, content=b'{"model": "x"}', headers={"content-type": content_type})
    check(answer)
    assert answer.status_code in (400, 415)


def test_json_over_the_limit_is_refused_with_and_without_a_length(client: httpx.Client) -> None:
    start = b'{"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "'
    assert check(client.post(CHAT, content=start + b"a" * (17 * MIB), headers=JSON))["code"] == "payload_too_large"

    def chunks() -> Iterator[bytes]:
        yield start
        for _ in range(17):
            yield b"a" * MIB

    answer = sent_until_answered(client, CHAT, chunks(), JSON)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"payload_too_large"' in answer


def test_a_form_over_the_limit_is_refused_with_and_without_a_length(client: httpx.Client) -> None:
    for route, size in (("/v1/audio/transcriptions", 65 * MIB), ("/v1/audio/transcriptions", 27 * MIB)):
        files = {"file": ("a.wav", b"R" * size), "model": (None, "english-transcription")}
        assert check(client.post(route, files=files))["code"] == "payload_too_large"
    files = {"input_reference": ("a.png", b"\x89" * (29 * MIB)), "prompt": (None, "x")}
    assert check(client.post("/v1/videos", files=files))["code"] == "payload_too_large"
    form = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    pieces = (part if number == 0 else b"R" * MIB for number in range(67))
    assert sent_until_answered(client, "/v1/audio/transcriptions", pieces, form).startswith(b"HTTP/1.1 413")


def sent_until_answered(client: httpx.Client, route: str, chunks: Iterator[bytes], headers: dict[str, str]) -> bytes:
    """The head and body of the answer to a chunked request, sent as long as the server reads."""
    url = client.base_url
    lines = [f"POST {route} HTTP/1.1", f"host: {url.host}", "transfer-encoding: chunked", "connection: close"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]) + "\r\n\r\n"
    answer = b""
    with socket.create_connection((url.host, url.port or 80), timeout=30) as line:
        try:
            line.sendall(head.encode())
            for chunk in chunks:
                line.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            line.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while piece := line.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(9000)) + b"\r\n", 431),
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /v1/videos HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n", 400),
        (b"POST /v1/videos HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (
            b"POST /v1/videos HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
    ],
    ids=["header", "path", "headers", "nonsense", "tls", "length", "chunk", "smuggled"],
)
def test_what_is_hardly_http_is_answered_in_the_envelope(
    client: httpx.Client, request_bytes: bytes, status: int
) -> None:
    answer = b""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30) as line:
        line.sendall(request_bytes)
        try:
            while piece := line.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}, head


def test_a_body_that_never_ends_holds_nobody_up(suite: Any, client: httpx.Client) -> None:
    lines = []
    for _ in range(50):
        line = socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30)
        line.sendall(
            b"POST /v1/videos HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
        lines.append(line)
    assert client.get("/v1/models").status_code == 200
    for line in lines:
        line.close()


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([-1, 0, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320]),
        st.text(max_size=8),
        st.sampled_from(
            ["\x00", "\u202e", "${jndi}", "../../etc/passwd", "data:image/png;base64,AAAA", "http://127.0.0.1/"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    CHAT: (
        {"model": TEXT, "messages": HELLO, "max_tokens": 1},
        ["messages", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "stream",
         "stream_options", "presence_penalty", "top_k", "min_p", "repetition_penalty", "user", "top_logprobs"],
    ),
    "/v1/completions": (
        {"model": TEXT, "prompt": "hi", "max_tokens": 1},
        ["prompt", "max_tokens", "temperature", "echo", "logprobs", "n", "stop", "logit_bias", "stream"],
    ),
    "/v1/embeddings": (
        {"model": TEXT, "input": "hi"},
        ["input", "encoding_format", "dimensions", "user"],
    ),
    "/v1/audio/speech": (
        {"model": "english-voices", "input": "hi"},
        ["input", "voice", "response_format", "speed", "stream_format", "seed"],
    ),
    "/v1/videos": (
        {"model": "shapes-video", "prompt": "hi", "steps": 1, "seconds": 0.1},
        ["prompt", "seconds", "size", "steps", "seed", "guidance_scale", "negative_prompt", "input_reference", "model"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("route", list(FIELDS))
def test_junk_in_any_field_is_answered_or_refused_but_never_a_500(client: httpx.Client, route: str) -> None:
    valid, names = FIELDS[route]

    @FUZZ
    @given(st.dictionaries(st.sampled_from(names), JUNK, min_size=1, max_size=2))
    def ask(changes: dict[str, Any]) -> None:
        body = json.dumps({**valid, **changes}).encode()  # escapes lone surrogates, as a hostile client would
        answer = client.post(route, content=body, headers=JSON)
        if answer.status_code != 200:
            check(answer)

    ask()


@pytest.mark.parametrize("route", ["/v1/audio/transcriptions", "/v1/videos"])
def test_junk_in_a_form_is_answered_or_refused_but_never_a_500(client: httpx.Client, route: str) -> None:
    names = st.sampled_from(
        ["file", "model", "prompt", "language", "input_reference", "a[b]", "a[b][c]", "a[]", "", "\r\n"]
    )
    part = st.tuples(names, st.binary(max_size=40), st.booleans())

    @FUZZ
    @given(st.lists(part, max_size=5), st.binary(max_size=10), st.sampled_from(["x", "y", "", '"x"']))
    def ask(parts: list[tuple[str, bytes, bool]], tail: bytes, boundary: str) -> None:
        body = b"".join(
            b'--x\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
            % (name.encode(), b'; filename="f"' if is_file else b"", data)
            for name, data, is_file in parts
        )
        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        check(client.post(route, content=body + b"--x--" + tail, headers=headers))

    ask()


def test_junk_in_paths_and_queries_is_answered_or_refused_but_never_a_500(client: httpx.Client) -> None:
    roots = st.sampled_from(
        ["/v1/models/", "/v1/videos/", "/v1/videos?", "/docs/assets/", "/v1/videos/x/content?", "/"]
    )
    words = st.sampled_from(
        [
            "limit=0",
            "limit=x",
            "limit=1e9",
            "after=../..",
            "order=up",
            "&",
            "%00",
            "%2e%2e%2f",
            "%ff",
            "..",
            "//",
            "?",
            "%",
        ]
    )

    @FUZZ
    @given(roots, st.lists(st.one_of(words, st.text("abz09-_.~", max_size=5)), max_size=4), st.sampled_from("GDPH"))
    def ask(root: str, tail: list[str], verb: str) -> None:
        method = {"G": "GET", "D": "DELETE", "P": "POST", "H": "HEAD"}[verb]
        target = (root + "".join(tail)).encode()
        with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30) as line:
            line.sendall(method.encode() + b" " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = b""
            while piece := line.recv(65536):
                answer += piece
        status = int(answer.split(b" ", 2)[1])
        assert status < 500, answer[:500]
        if status >= 400 and method != "HEAD":
            assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}

    ask()
