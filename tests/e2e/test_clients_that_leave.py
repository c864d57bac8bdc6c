"""A client that leaves is noticed through gateway and service: its request ends in the engine, its memory is free."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

TEXT = "smollm2-135m-instruct"
ENDLESS: dict[str, Any] = {
    "model": TEXT,
    "messages": [{"role": "user", "content": "Tell me a very long story."}],
    "max_tokens": 4000,
    "ignore_eos": True,
}
SENTENCE = "Every large picture is made of small stones. "
SPEECH: dict[str, Any] = {"model": "english-voices", "response_format": "pcm", "seed": 1}


def asking(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection on which a whole request has been sent. Closing it is leaving."""
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return line


@pytest.fixture
def sampled(suite: Any) -> Callable[[], float]:
    return lambda: suite.metric("text", "tessera_text_engine_sampled_tokens_total")


def pages(suite: Any) -> float:
    return suite.metric("text", "tessera_text_engine_kv_pages_used")


def cancelled(suite: Any, upstream: str) -> float:
    return suite.metric("gateway", "tessera_gateway_cancelled_requests_total", upstream=upstream)


@pytest.mark.parametrize("through", ["gateway", "text"])
def test_leaving_a_stream_frees_its_pages(
    suite: Any, wait: Callable[..., Any], sampled: Callable[[], float], through: str
) -> None:
    url = suite.base_url if through == "gateway" else suite.urls["text"]
    before, counted = sampled(), cancelled(suite, "text")
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**ENDLESS, "stream": True}, timeout=60) as answer:
        lines = answer.iter_lines()  # held: httpx hangs up when nobody iterates any more
        assert next(lines).startswith("data: ")
        wait(lambda: pages(suite) > 0, "pages in use")
    wait(lambda: pages(suite) == 0, "pages to be free")
    assert sampled() - before < 1000, "it was cancelled, it did not end"
    assert cancelled(suite, "text") - counted == (through == "gateway")


def test_leaving_a_stream_of_several_choices_ends_them_all(suite: Any, wait: Callable[..., Any]) -> None:
    body = {**ENDLESS, "stream": True, "n": 4}
    with httpx.stream("POST", f"{suite.base_url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        wait(lambda: suite.metric("text", "tessera_text_engine_requests_running") == 4, "four running requests")
    wait(lambda: suite.metric("text", "tessera_text_engine_requests_running") == 0, "none of them to run")
    assert pages(suite) == 0


@pytest.mark.parametrize("through", ["gateway", "text"])
def test_leaving_before_a_whole_answer_frees_its_pages(
    suite: Any, wait: Callable[..., Any], sampled: Callable[[], float], through: str
) -> None:
    port = int((suite.base_url if through == "gateway" else suite.urls["text"]).rpartition(":")[2])
    before = sampled()
    with asking(port, ENDLESS):
        wait(lambda: pages(suite) > 0, "pages in use")
    wait(lambda: pages(suite) == 0, "pages to be free")
    assert sampled() - before < 1000, "it was cancelled, it did not end"


def test_leaving_a_spoken_text_ends_the_speaking(suite: Any, wait: Callable[..., Any]) -> None:
    def running() -> float:
        return suite.metric("speech", "tessera_speech_engine_requests_running")

    def spoken() -> float:
        return suite.metric("speech", "tessera_speech_engine_synthesized_audio_seconds_total")

    url = f"{suite.base_url}/v1/audio/speech"
    few = httpx.post(url, json={**SPEECH, "input": SENTENCE * 4}, timeout=60).raise_for_status()
    seconds = 20 * len(few.content) / 2 / 24_000  # of eighty sentences, more or less
    wait(lambda: running() == 0, "the few to be counted")
    before = spoken()
    with httpx.stream("POST", url, json={**SPEECH, "input": SENTENCE * 80}, timeout=60) as answer:
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        assert next(pieces)
    wait(lambda: running() == 0 and spoken() > before, "the speaking to end")
    cut = spoken() - before
    assert cut < 0.7 * seconds, f"{cut} s of {seconds} s were spoken to nobody"


def test_clients_that_leave_in_a_crowd_take_nobody_with_them(suite: Any, wait: Callable[..., Any]) -> None:
    asked: dict[str, Any] = {
        "model": TEXT,
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    port = int(suite.base_url.rpartition(":")[2])
    lines = [asking(port, {**ENDLESS, "stream": True}) for _ in range(12)]
    wait(lambda: suite.metric("text", "tessera_text_engine_requests_running") >= 6, "a crowd")
    stream = suite.sdk().chat.completions.create(**asked, stream=True)
    text = ""
    for chunk in stream:
        if lines:
            lines.pop().close()
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    for line in lines:
        line.close()
    assert text == "The capital of Japan is Tokyo."
    wait(lambda: pages(suite) == 0, "pages to be free")
    assert suite.metric("text", "tessera_text_engine_requests_running") == 0
