"""Anthropic's messages at the gateway: passed through where an upstream has them, translated where it does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.services.gateway.chat_upstreams import ChatUpstream, chunk, whole

ASKED = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
USED = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}, "cost": 0.1}
RECORDED = Path(__file__).parents[2] / "shared" / "protocols" / "claude_code"


@pytest.fixture
def foreign() -> Iterator[Callable[..., ChatUpstream]]:
    made: list[ChatUpstream] = []

    def make(*models: str, name: str = "foreign") -> ChatUpstream:
        made.append(ChatUpstream(*(models or ("m",)), name=name).start())
        return made[-1]

    yield make
    for one in made:
        one.close()


def events_of(stream: str) -> list[tuple[str, Any]]:
    found = []
    for block in stream.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        head, data = block.split("\n")
        found.append((head.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_an_upstream_with_the_route_gets_and_gives_the_bytes_as_they_are(gateway, foreign):
    fake = foreign()
    fake.native["/v1/messages"] = b'{"its": "own"}'
    running = gateway(fake)
    sent = json.dumps({**ASKED, "shiny": True}).encode()
    answer = httpx.post(
        running.url + "/v1/messages?beta=true", content=sent, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.content) == (200, b'{"its": "own"}')
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert fake.requests[0][2] == json.loads(sent)


def test_an_upstream_without_the_route_is_asked_for_it_once_and_then_translated(gateway, foreign):
    fake = foreign()
    fake.reply = {**whole(content="Hello."), "usage": USED}
    running = gateway(fake)
    for _ in range(2):
        answer = httpx.post(running.url + "/v1/messages", json={**ASKED, "system": "S", "temperature": 0.5})
        assert answer.status_code == 200
        assert answer.headers["request-id"]
        message = answer.json()
        assert message["content"] == [{"type": "text", "text": "Hello."}]
        assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "m")
        assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
        assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (5, 2)
    assert fake.paths() == ["/v1/messages", "/v1/chat/completions", "/v1/chat/completions"]
    # Nothing is sent that the request did not say: other servers refuse what they do not know.
    assert fake.requests[-1][2] == {
        "model": "m",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
        "max_tokens": 9,
        "temperature": 0.5,
    }


@pytest.mark.parametrize("status", [405, 501])
def test_other_ways_to_say_that_there_is_no_route(gateway, foreign, status):
    fake = foreign()
    fake.lacking_status, fake.reply = status, whole(content="Hello.")
    assert httpx.post(gateway(fake).url + "/v1/messages", json=ASKED).json()["content"][0]["text"] == "Hello."


def test_a_stream_is_translated_with_thoughts_calls_and_usage(gateway, foreign):
    fake = foreign()
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    fake.reply = [
        chunk(role="assistant", content="", refusal=None),
        b": a comment\n\n",
        chunk(reasoning="Let me see."),
        chunk(content="So."),
        chunk(tool_calls=[call]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}]),
        chunk(finish="tool_calls"),
        {"id": "x", "choices": [], "usage": USED},
        b"data: [DONE]\n\n",
    ]
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"enum": [None, 1]}}}}
    answer = httpx.post(gateway(fake).url + "/v1/messages", json={**ASKED, "stream": True, "tools": [tool]})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(answer.text)
    assert [name for name, _ in events] == [
        "message_start",
        "ping",
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_stop"],
        "message_delta",
        "message_stop",
    ]
    assert events[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == 3
    sent = fake.requests[-1][2]
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["tools"] == [{"function": {"name": "f", "parameters": tool["input_schema"]}, "type": "function"}]


def test_a_request_as_claude_code_sends_it_is_translated(gateway, foreign):
    fake = foreign("claude-opus-4-8", "claude-sonnet-4-5")
    fake.reply = [chunk(content="Done."), chunk(finish="stop")]
    running = gateway(fake)
    for path in sorted(RECORDED.glob("*.json")):
        recorded = json.loads(path.read_text())
        answer = httpx.post(
            running.url + recorded["path"],
            json=recorded["body"],
            headers={name: value for name, value in recorded["headers"].items() if name != "User-Agent"},
        )
        assert events_of(answer.text)[-1][0] == "message_stop"
        roles = [message["role"] for message in fake.requests[-1][2]["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("reply", "blocks", "reason"),
    [
        (whole("eos", content="a"), [{"type": "text", "text": "a"}], "end_turn"),
        (whole("content_filter", content=None), [], "refusal"),
        (whole("stop", content=None, refusal="No."), [{"type": "text", "text": "No."}], "refusal"),
        (whole("length", content=[{"type": "text", "text": "a"}]), [{"type": "text", "text": "a"}], "max_tokens"),
        (
            whole("function_call", content=None, function_call={"name": "f", "arguments": '{"a": 1}'}),
            [{"type": "tool_use", "name": "f", "input": {"a": 1}}],
            "tool_use",
        ),
        (
            whole("stop", content="", tool_calls=[{"id": None, "function": {"name": "f", "arguments": {"a": 1}}}]),
            [{"type": "tool_use", "name": "f", "input": {"a": 1}}],
            "tool_use",
        ),
    ],
)
def test_answers_of_other_makes_are_understood(gateway, foreign, reply, blocks, reason):
    fake = foreign()
    fake.reply = reply
    message = httpx.post(gateway(fake).url + "/v1/messages", json=ASKED).json()
    shown = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    assert (shown, message["stop_reason"]) == (blocks, reason)


def test_a_server_that_answers_a_stream_as_a_whole_is_understood(gateway, foreign):
    fake = foreign()
    fake.reply = {**whole(content="Hello."), "usage": USED}
    events = events_of(httpx.post(gateway(fake).url + "/v1/messages", json={**ASKED, "stream": True}).text)
    assert [event["delta"]["text"] for name, event in events if name == "content_block_delta"] == ["Hello."]
    assert events[-1][0] == "message_stop"


@pytest.mark.parametrize(
    ("status", "body", "expected", "kind", "words"),
    [
        (400, {"error": {"message": "bad thing", "code": None}}, 400, "invalid_request_error", "bad thing"),
        (422, {"detail": [{"msg": "odd"}]}, 422, "invalid_request_error", "odd"),
        (429, {"error": "busy"}, 529, "overloaded_error", "busy"),
        (429, {"error": {"message": "m", "code": "rate_limit_exceeded"}}, 429, "rate_limit_error", "m"),
        (413, {"message": "large"}, 413, "request_too_large", "large"),
        (500, {"error": {"message": "boom"}}, 502, "api_error", "boom"),
        (503, {}, 503, "api_error", "foreign"),
    ],
)
def test_errors_of_the_upstream_are_said_in_anthropics_envelope(gateway, foreign, status, body, expected, kind, words):
    fake = foreign()
    fake.status, fake.reply = status, body
    answer = httpx.post(gateway(fake).url + "/v1/messages", json={**ASKED, "stream": True})
    assert answer.status_code == expected
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert words in told["error"]["message"]
    assert told["request_id"] == answer.headers["request-id"]


def test_a_model_that_the_upstream_no_longer_has_is_no_missing_route(gateway, foreign):
    fake = foreign()
    fake.status, fake.reply = 404, {"error": {"message": "no such model"}}
    running = gateway(fake)
    for _ in range(2):
        answer = httpx.post(running.url + "/v1/messages", json=ASKED)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert fake.paths() == ["/v1/messages", "/v1/chat/completions"] * 2


@pytest.mark.parametrize(
    "broken",
    [
        [chunk(content="a"), RuntimeError("cut")],
        [chunk(content="a"), {"error": {"message": "out of memory", "code": 500}}],
        [chunk(content="a"), b"data: {nonsense\n\n"],
        [chunk(content="a")],
        [chunk(content="a"), chunk(finish="abort")],
    ],
    ids=["cut", "error event", "not json", "no end", "given up"],
)
def test_a_failure_within_a_stream_ends_it_with_an_error_event(gateway, foreign, broken):
    fake = foreign()
    fake.reply = broken
    running = gateway(fake)
    events = events_of(httpx.post(running.url + "/v1/messages", json={**ASKED, "stream": True}).text)
    assert "content_block_delta" in [name for name, _ in events]
    assert events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "api_error"
    assert "message_stop" not in [name for name, _ in events]
    assert running.metric("tessera_gateway_upstream_in_flight", upstream="foreign") == 0


def test_a_failure_before_the_first_event_has_its_own_status(gateway, foreign):
    fake = foreign()
    fake.reply = [{"error": {"message": "out of memory"}}]
    answer = httpx.post(gateway(fake).url + "/v1/messages", json={**ASKED, "stream": True})
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "api_error")


def test_an_answer_that_is_no_chat_completion_is_a_bad_gateway(gateway, foreign):
    fake = foreign()
    for reply in (b"<html>", {"choices": []}, {"choices": [{"message": {"tool_calls": 7}}]}):
        fake.reply = reply
        answer = httpx.post(gateway(fake).url + "/v1/messages", json=ASKED)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "api_error")


def test_a_client_that_leaves_a_translated_stream_cancels_the_upstream(gateway, foreign, wait):
    fake = foreign()
    fake.reply = [chunk(content="a"), ...]
    running = gateway(fake)
    with httpx.stream("POST", running.url + "/v1/messages", json={**ASKED, "stream": True}) as answer:
        next(answer.iter_raw())
        assert fake.began.wait(5)
    assert fake.left.wait(5)
    wait(lambda: running.metric("tessera_gateway_cancelled_requests_total", upstream="foreign") == 1, "the count")
    assert running.metric("tessera_gateway_upstream_in_flight", upstream="foreign") == 0


def test_a_silent_upstream_ends_the_stream_with_an_error_event(gateway, foreign):
    fake = foreign()
    fake.reply = [chunk(content="a"), ...]
    running = gateway(fake, idle_timeout_s=0.3)
    events = events_of(httpx.post(running.url + "/v1/messages", json={**ASKED, "stream": True}).text)
    assert events[-1][1]["error"]["type"] == "timeout_error"


BEGUN = {**ASKED, "messages": [*ASKED["messages"], {"role": "assistant", "content": "The"}]}


@pytest.mark.parametrize("make", ["vllm", "sglang"])
def test_an_upstream_that_is_known_to_go_on_with_the_last_turn_is_asked_to(gateway, foreign, make):
    fake = foreign()
    fake.owned_by, fake.reply = make, whole(content=" end.")
    message = httpx.post(gateway(fake).url + "/v1/messages", json=BEGUN).json()
    assert message["content"] == [{"type": "text", "text": " end."}]
    sent = fake.requests[-1][2]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert sent["messages"][-1] == {"role": "assistant", "content": "The"}


def test_an_upstream_that_may_not_know_how_to_go_on_is_not_asked(gateway, foreign):
    fake = foreign()
    fake.reply = whole(content=" end.")
    running = gateway(fake)
    counted = {name: value for name, value in BEGUN.items() if name != "max_tokens"}
    for path, asked in (("", BEGUN), ("/count_tokens", counted)):
        answer = httpx.post(running.url + "/v1/messages" + path, json=asked)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "the upstream foreign" in answer.json()["error"]["message"]
    assert "/v1/chat/completions" not in fake.paths()


def test_tokens_are_counted_by_an_upstream_that_cannot_count(gateway, foreign):
    fake = foreign()
    fake.reply = {**whole("length", content="a"), "usage": USED}
    running = gateway(fake)
    asked = {"model": "m", "messages": ASKED["messages"]}
    assert httpx.post(running.url + "/v1/messages/count_tokens", json=asked).json() == {"input_tokens": 7}
    assert fake.requests[-1][2]["max_tokens"] == 1
    fake.reply = whole("length", content="a")
    assert httpx.post(running.url + "/v1/messages/count_tokens", json=asked).status_code == 502


@pytest.mark.parametrize(
    ("sent", "headers", "status", "kind"),
    [
        (b"{", {"x-api-key": "k"}, 400, "invalid_request_error"),
        (b'{"model": "m", "shiny": 1}', {"x-api-key": "k"}, 400, "invalid_request_error"),
        (b'{"model": "none"}', {"x-api-key": "k"}, 404, "not_found_error"),
        (b'{"model": "m"}', {"x-api-key": "wrong"}, 401, "authentication_error"),
        (b'{"model": "m"}', {}, 401, "authentication_error"),
        (b" " * 5000, {"x-api-key": "k"}, 413, "request_too_large"),
        (b"{}", {"x-api-key": "k", "content-type": "text/plain"}, 415, "invalid_request_error"),
    ],
)
def test_errors_of_the_gateway_itself_have_anthropics_envelope(gateway, foreign, sent, headers, status, kind):
    running = gateway(foreign(), api_keys=["k"], max_json_bytes=4000)
    headers = {"content-type": "application/json", **headers}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = httpx.post(running.url + path, content=sent, headers=headers)
        assert answer.status_code == status, answer.text
        told = answer.json()
        assert (told["type"], told["error"]["type"]) == ("error", kind)
        assert told["request_id"] == answer.headers["request-id"]


def test_another_method_has_anthropics_envelope_too(gateway, foreign):
    answer = httpx.get(gateway(foreign()).url + "/v1/messages")
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")


def test_the_first_upstream_that_can_be_reached_answers(gateway, foreign):
    away, here = foreign(name="away"), foreign(name="here")
    here.reply = whole(content="Hello.")
    running = gateway(away, here)
    away.close()
    try:
        assert httpx.post(running.url + "/v1/messages", json=ASKED).json()["content"][0]["text"] == "Hello."
    finally:
        away.__init__("m", name="away")  # type: ignore[misc]
        away.start()


def test_clients_see_that_a_server_is_there_by_head_without_a_key(gateway, foreign):
    running = gateway(foreign(), api_keys=["k"])
    assert httpx.head(running.url + "/").status_code == 200


def test_models_are_listed_in_anthropics_shape_to_its_clients(gateway, foreign):
    running = gateway(foreign("a", "b"), api_keys=["k"], aliases={})
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    page = httpx.get(running.url + "/v1/models?limit=1", headers=headers).json()
    assert (page["data"][0]["id"], page["has_more"], page["last_id"]) == ("a", True, "a")
    assert httpx.get(running.url + "/v1/models/b", headers=headers).json()["id"] == "b"
    refused = httpx.get(running.url + "/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
