"""Answers on their way: bytes as they are, a leaving client cancels, a failing upstream says so."""

from __future__ import annotations

import json
import socket

import httpx
import openai
import pytest

TOLD = {"model": "a", "stream": True}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def chat_url(gateway) -> str:
    return gateway.url + "/v1/chat/completions"


def error_in(event: bytes) -> dict:
    assert event.startswith(b"data: ")
    return json.loads(event.removeprefix(b"data: "))["error"]


@pytest.mark.parametrize("pieces", [None, 1, 2, 7, 1000])
def test_a_stream_passes_byte_for_byte(gateway, upstream, events, pieces):
    running = gateway(upstream("a"))
    answer = httpx.post(chat_url(running), json={**TOLD, "behave": "stream", "pieces": pieces})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.content == b"".join(events)


def test_bytes_that_are_no_events_pass_too(gateway, upstream, events, model):
    running = gateway(upstream(model("voice", "speech")))
    told = {"model": "voice", "behave": "stream", "type": "audio/wav", "pieces": 3}
    with httpx.stream("POST", running.url + "/v1/audio/speech", json=told) as answer:
        assert answer.headers["content-type"] == "audio/wav"
        assert b"".join(answer.iter_raw()) == b"".join(events)


def test_an_event_arrives_before_the_stream_has_ended(gateway, upstream, events):
    fake = upstream("a")
    running = gateway(fake)
    with httpx.stream("POST", chat_url(running), json={**TOLD, "behave": "drip"}, timeout=20) as answer:
        received = answer.iter_raw()
        assert next(received) == events[0]
        fake.go_on.set()
        assert b"".join(received) == events[-1]


def test_a_client_that_leaves_a_stream_cancels_the_upstream(gateway, upstream, wait):
    fake = upstream("a")
    running = gateway(fake)
    with httpx.stream("POST", chat_url(running), json={**TOLD, "behave": "drip"}) as answer:
        next(answer.iter_raw())
    assert fake.left.wait(5)
    wait(lambda: running.metric("tessera_gateway_cancelled_requests_total", upstream="fake") == 1, "the count")
    assert running.metric("tessera_gateway_upstream_in_flight", upstream="fake") == 0


def test_a_client_that_leaves_before_the_answer_cancels_the_upstream(gateway, upstream, wait):
    fake = upstream("a")
    running = gateway(fake)
    body = json.dumps({"model": "a", "behave": "silent"}).encode()
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(HEAD % len(body) + body)
        assert fake.began.wait(5)
        assert not fake.left.is_set()
    assert fake.left.wait(5)
    labels = {"route": "/v1/chat/completions", "status": "499"}
    wait(lambda: running.metric("tessera_http_requests_total", **labels) == 1, "the count")
    assert running.metric("tessera_gateway_upstream_in_flight", upstream="fake") == 0


def test_a_client_that_leaves_while_it_sends_is_no_error_of_ours(gateway, upstream, wait):
    fake = upstream("a")
    running = gateway(fake)
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(HEAD % 99 + b"{")
    wait(lambda: running.metric("tessera_http_requests_total", status="499") == 1, "the count")
    assert fake.requests == []


@pytest.mark.parametrize("pieces", [None, 33])
def test_a_stream_that_is_cut_ends_with_an_error_event(gateway, upstream, events, pieces):
    running = gateway(upstream("a"))
    answer = httpx.post(chat_url(running), json={**TOLD, "behave": "stream", "pieces": pieces, "cut_after": 3})
    assert answer.status_code == 200
    received = answer.content.split(b"\n\n")
    assert received[-1] == b""
    whole, last = received[:-2], received[-2]
    assert [event + b"\n\n" for event in whole] == events[: len(whole)], "no half event comes through"
    assert len(whole) >= 2
    assert error_in(last)["code"] == "upstream_error"


def test_the_sdk_raises_when_a_stream_is_cut(gateway, upstream):
    running = gateway(upstream("a"))
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.APIError, match="cut the connection"):
        for _ in client.chat.completions.create(
            model="a", messages=[], stream=True, extra_body={"behave": "stream", "cut_after": 2}
        ):
            pass


def test_audio_that_is_cut_does_not_look_whole(gateway, upstream, model):
    running = gateway(upstream(model("voice", "speech")))
    told = {"model": "voice", "behave": "stream", "type": "audio/wav", "cut_after": 3}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(running.url + "/v1/audio/speech", json=told)


def test_an_upstream_that_cuts_before_it_answers_is_a_bad_gateway_and_asked_at_most_twice(gateway, upstream):
    fake = upstream("a")
    running = gateway(fake)
    answer = httpx.post(chat_url(running), json={"model": "a", "behave": "die"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_error"
    assert answer.headers["x-should-retry"] == "true"
    assert len(fake.requests) == 2


def test_a_request_that_kills_does_not_walk_through_all_replicas(gateway, upstream):
    fakes = [upstream("a", name=f"replica-{number}") for number in range(4)]
    running = gateway(*fakes)
    assert httpx.post(chat_url(running), json={"model": "a", "behave": "die"}).status_code == 502
    assert sorted(len(fake.requests) for fake in fakes) == [0, 0, 1, 1]


def test_a_replica_that_is_down_is_passed_over(gateway, upstream):
    first, second = upstream("a", name="first"), upstream("a", name="second")
    running = gateway(first, second)
    first.stop()
    for _ in range(4):
        assert httpx.post(chat_url(running), json={"model": "a"}).json() == {"from": "second"}


def test_a_known_model_whose_upstream_is_down_is_unavailable_and_comes_back(gateway, upstream, wait):
    fake = upstream("a")
    running = gateway(fake)
    fake.stop()
    for _ in range(2):
        answer = httpx.post(chat_url(running), json={"model": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert int(answer.headers["retry-after"]) >= 1
    assert httpx.get(running.url + "/v1/models/a").status_code == 200
    fake.start()
    wait(lambda: httpx.post(chat_url(running), json={"model": "a"}).status_code == 200, "its return")


def test_a_silent_upstream_is_a_gateway_timeout(gateway, upstream):
    fake = upstream("a")
    running = gateway(fake, idle_timeout_s=0.3)
    answer = httpx.post(chat_url(running), json={"model": "a", "behave": "silent"})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "upstream_timeout"
    assert fake.left.wait(5)
    assert len(fake.requests) == 1, "a slow request is not sent again"


def test_a_stream_that_falls_silent_ends_with_an_error_event(gateway, upstream, events):
    fake = upstream("a")
    running = gateway(fake, idle_timeout_s=0.3)
    answer = httpx.post(chat_url(running), json={**TOLD, "behave": "drip"})
    first, last, _ = answer.content.split(b"\n\n")
    assert first + b"\n\n" == events[0]
    assert error_in(last)["code"] == "upstream_timeout"
    assert fake.left.wait(5)


def test_many_streams_share_the_gateway(gateway, upstream, events):
    from concurrent.futures import ThreadPoolExecutor

    running = gateway(upstream("a"))

    def one(_: int) -> bytes:
        return httpx.post(chat_url(running), json={**TOLD, "behave": "stream", "pieces": 5}, timeout=60).content

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(one, range(64))) == {b"".join(events)}
