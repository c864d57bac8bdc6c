"""Anthropic's messages of the text service, over HTTP with a tiny model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

MODEL = "tiny-text"
ASKED = {"model": MODEL, "max_tokens": 20, "temperature": 0, "messages": [{"role": "user", "content": "abc"}]}


@pytest.fixture
def post(text):
    def send(path: str = "/v1/messages", **fields: Any) -> httpx.Response:
        return httpx.post(f"{text.url}{path}", json={**ASKED, **fields}, timeout=60)

    return send


def read(stream: str) -> tuple[list[str], str]:
    events = [json.loads(block.split("data: ")[1]) for block in stream.split("\n\n")[:-1] if "data: " in block]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return [event["type"] for event in events], "".join(delta["text"] for delta in deltas)


def test_an_answer_is_chats_answer_in_anthropics_shape(client, post):
    chat = client.chat.completions.create(
        model=MODEL, max_tokens=20, temperature=0, messages=[{"role": "user", "content": "abc"}]
    )
    answer = post()
    message = answer.json()
    assert answer.headers["request-id"]
    assert message["content"] == [{"type": "text", "text": chat.choices[0].message.content}]
    assert message["stop_reason"] == {"stop": "end_turn", "length": "max_tokens"}[chat.choices[0].finish_reason]
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat.usage.prompt_tokens
    assert usage["output_tokens"] == chat.usage.completion_tokens


def test_a_stream_has_the_same_text_in_anthropics_events(post):
    answer = post(stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"]
    names, text = read(answer.text)
    assert text == post().json()["content"][0]["text"]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert "[DONE]" not in answer.text


def test_the_stop_sequence_that_ended_the_answer_is_named(post):
    stop = post().json()["content"][0]["text"][5:8]
    message = post(stop_sequences=["never", stop]).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)


def test_the_tokens_of_a_prompt_are_counted_as_they_are_used(text, post):
    asked = {name: ASKED[name] for name in ("model", "messages")} | {"system": "Be brief."}
    counted = httpx.post(f"{text.url}/v1/messages/count_tokens", json=asked)
    assert counted.headers["request-id"]
    usage = post(system="Be brief.").json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_an_answer_goes_on_with_the_assistants_last_turn(client, text, post):
    turns = [*ASKED["messages"], {"role": "assistant", "content": "ab"}]
    chat = client.chat.completions.create(
        model=MODEL, max_tokens=20, temperature=0, messages=turns, extra_body={"continue_final_message": True}
    )
    message = post(messages=turns).json()
    assert message["content"] == [{"type": "text", "text": chat.choices[0].message.content}]
    assert message["content"] != post().json()["content"]
    assert read(post(messages=turns, stream=True).text)[1] == message["content"][0]["text"]
    asked = {"model": MODEL, "messages": turns}
    counted = httpx.post(f"{text.url}/v1/messages/count_tokens", json=asked, timeout=60).json()["input_tokens"]
    assert counted == chat.usage.prompt_tokens
    refused = post(messages=[*ASKED["messages"], {"role": "assistant", "content": "ab "}])
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_json_output_follows_its_schema(post):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}}
    message = post(output_config={"format": form}, max_tokens=200).json()
    assert json.loads(message["content"][0]["text"])["a"] in {1, 2}


def test_a_tool_that_must_be_called_is_called(post):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    tool = {"name": "pick", "description": "Pick.", "input_schema": schema}
    asked = {"tools": [tool], "tool_choice": {"type": "tool", "name": "pick"}, "max_tokens": 200}
    message = post(**asked).json()
    assert message["stop_reason"] == "tool_use"
    (block,) = [block for block in message["content"] if block["type"] == "tool_use"]
    assert (block["name"], block["input"]["a"] in {1, 2}) == ("pick", True)
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "ok"}]}
    turns = [*ASKED["messages"], {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    assert post(messages=turns, tools=[tool]).json()["role"] == "assistant"


def test_tools_may_be_called_beside_a_format(post):
    properties = {"a": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": {"type": "array", "items": {"type": "null"}, "maxItems": 2}}
    asked = {"output_config": {"format": form}, "max_tokens": 1000, "temperature": 1}
    for choice, kinds in (("auto", {"tool_use", "text"}), ("any", {"tool_use"}), ("none", {"text"})):
        one = {} if choice == "none" else {"disable_parallel_tool_use": True}
        tools = [{"name": "add", "input_schema": schema}]
        (block,) = post(**asked, tools=tools, tool_choice={"type": choice, **one}).json()["content"]
        assert block["type"] in kinds
        if block["type"] == "tool_use":
            assert isinstance(block["input"]["a"], bool)
        else:
            assert set(json.loads(block["text"])) <= {None}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "other"}, 404, "not_found_error", "tiny-text"),
        ({"shiny": 1}, 400, "invalid_request_error", "shiny"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, 400, "invalid_request_error", "context"),
    ],
)
def test_errors_are_in_anthropics_envelope(post, fields, status, kind, words):
    for more in ({}, {"stream": True}):
        answer = post(**fields, **more)
        told = answer.json()
        assert (answer.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert words in told["error"]["message"]
        assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_models_are_listed_in_anthropics_shape_to_its_clients(text):
    version = {"anthropic-version": "2023-06-01"}
    page = httpx.get(f"{text.url}/v1/models?limit=5", headers=version).json()
    assert [(model["id"], model["type"], model["max_input_tokens"]) for model in page["data"]] == [
        (MODEL, "model", 4096)
    ]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, MODEL, MODEL)
    assert page["data"][0]["created_at"].endswith("Z")
    assert httpx.get(f"{text.url}/v1/models/{MODEL}", headers=version).json()["display_name"] == MODEL
    assert httpx.get(f"{text.url}/v1/models").json()["object"] == "list"
    missing = httpx.get(f"{text.url}/v1/models/none", headers=version)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    wrong = httpx.get(f"{text.url}/v1/models?limit=0", headers=version)
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")
