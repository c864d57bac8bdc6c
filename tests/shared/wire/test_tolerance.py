"""What a body may say that changes no answer, and what is refused by name all the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from tessera.errors import InvalidRequestError
from tessera.wire import tolerance
from tessera.wire.audio import SpeechRequest, TranscriptionRequest
from tessera.wire.chat import ChatCompletionRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest
from tessera.wire.decoding import decode_json
from tessera.wire.images import ImageGenerationRequest
from tessera.wire.tools import DetokenizeRequest

REQUESTS: dict[type[Any], dict[str, Any]] = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"model": "m", "prompt": "x"},
    EmbeddingRequest: {"model": "m", "input": "x"},
    TokenizeRequest: {"model": "m"},
    DetokenizeRequest: {"model": "m", "tokens": [1]},
    SpeechRequest: {"model": "m", "input": "x"},
    TranscriptionRequest: {"model": "m"},
    ImageGenerationRequest: {"prompt": "x"},
}
"""Every JSON request, with the least that it must have."""
OPTIONAL = [
    (kind, field.encode_name) for kind in REQUESTS for field in msgspec.structs.fields(kind) if not field.required
]


def decoded(kind: type[Any], **fields: Any) -> Any:
    return decode_json(json.dumps({**REQUESTS[kind], **fields}).encode(), kind)


def chat(*messages: dict[str, Any], **fields: Any) -> ChatCompletionRequest:
    return decoded(ChatCompletionRequest, **({"messages": list(messages)} if messages else {}), **fields)


@pytest.mark.parametrize(("kind", "name"), OPTIONAL, ids=lambda value: getattr(value, "__name__", value))
def test_an_explicit_null_of_any_optional_field_leaves_it_out(kind, name):
    assert decoded(kind, **{name: None}) == decoded(kind)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_all_nulls_at_once_leave_everything_out(kind):
    assert decoded(kind, **{name: None for of, name in OPTIONAL if of is kind}) == decoded(kind)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_null_of_a_required_field_and_an_unknown_field_with_null_are_refused_by_name(kind):
    required = next(field.encode_name for field in msgspec.structs.fields(kind) if field.required)
    with pytest.raises(InvalidRequestError) as refused:
        decoded(kind, **{required: None})
    assert refused.value.param == required
    with pytest.raises(InvalidRequestError) as refused:
        decoded(kind, nothing_here=None)
    assert (refused.value.param, refused.value.own_code) == ("nothing_here", "unknown_parameter")


def test_nulls_within_objects_are_left_out_too():
    asked = chat(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": None}}]},
        stream_options={"include_usage": True, "continuous_usage_stats": None},
        tools=[{"type": None, "function": {"name": "f", "strict": None, "parameters": {"a": None}}}],
        n=None,
    )
    assert asked.stream_options is not None
    assert asked.stream_options.include_usage
    assert asked.tools is not None
    assert asked.tools[0].function.parameters == {"a": None}, "a value that is the client's own keeps its nulls"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ADDED = {
    "provider_specific_fields": {"refusal": None, "citations": []},
    "annotations": [],
    "reasoning": "thought",
    "reasoning_content": "thought",
    "reasoning_details": [{"type": "reasoning.text", "text": "thought"}],
    "thinking_blocks": [{"type": "thinking", "thinking": "x", "signature": "y"}],
    "audio": {"id": "audio_1"},
    "refusal": None,
    "function_call": None,
    "cache_control": {"type": "ephemeral"},
    "images": [],
    "parsed": {"a": 1},
    "id": "msg_1",
}
"""What clients and gateways add to an assistant's message: litellm, LangChain, OpenRouter, vLLM, OpenAI's `parse`."""


@pytest.mark.parametrize("key", ADDED)
def test_an_assistants_message_may_have_what_others_added_and_no_other_message(key):
    asked = chat({"role": "assistant", "content": "x", key: ADDED[key]}, n=2)
    assert (asked.messages[0].content, asked.n) == ("x", 2)
    if key not in asked.messages[0].__struct_fields__:
        with pytest.raises(InvalidRequestError, match="is not a parameter"):
            chat({"role": "user", "content": "x", key: ADDED[key]})


def test_a_tool_call_and_a_part_of_an_assistant_may_have_additions_too():
    added = {"provider_specific_fields": {"thought_signature": "x"}, "custom": None, "caller": {"type": "direct"}}
    called = {**CALL, **added, "function": {**CALL["function"], "provider_specific_fields": {}}}
    part = {"type": "text", "text": "x", "annotations": [], "index": 0}
    asked = chat({"role": "assistant", "content": [part], "tool_calls": [called]})
    assert asked == chat({"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_calls": [CALL]})
    for other in (
        {"role": "user", "content": [part]},
        {"role": "tool", "tool_call_id": "c", "content": "x", "provider_specific_fields": {}},
    ):
        with pytest.raises(InvalidRequestError, match="is not a parameter"):
            chat({"role": "assistant", "content": "x", "extra": 1}, other)


def test_what_is_wrong_beside_what_is_dropped_is_named():
    with pytest.raises(InvalidRequestError) as refused:
        chat({"role": "assistant", "content": "x", "extra": 1}, n=None, temprature=1)
    assert refused.value.param == "temprature"
    with pytest.raises(InvalidRequestError) as refused:
        chat({"role": "assistant", "content": 5, "extra": 1})
    assert refused.value.param == "messages[0].content"


def test_a_cache_hint_may_stand_on_messages_parts_and_tools_of_any_role():
    hint = {"cache_control": {"type": "ephemeral"}}
    for role in ("system", "developer", "user", "tool"):
        asked = chat({"role": role, "content": [{"type": "text", "text": "x", **hint}], **hint})
        assert asked.messages[0].cache_control == hint["cache_control"]
    assert chat(tools=[{"type": "function", "function": {"name": "f"}, **hint}]).tools


def test_a_body_of_very_many_values_is_not_looked_through(monkeypatch):
    monkeypatch.setattr(tolerance, "MAX_VALUES", 40)
    assert chat({"role": "assistant", "content": "x", "extra": [1] * 10}).messages
    with pytest.raises(InvalidRequestError, match="is not a parameter"):
        chat({"role": "assistant", "content": "x", "extra": [1] * 41})


def test_a_body_that_is_valid_is_decoded_once(monkeypatch):
    monkeypatch.setattr("tessera.wire.decoding.relaxed", lambda *_: pytest.fail("the slow way was taken"))
    assert chat(stop="x", n=1).n == 1


def test_a_body_that_breaks_off_behind_the_first_fault_is_refused():
    body = b'{"model": "m", "n": null, "messages": ['
    with pytest.raises(InvalidRequestError):
        decode_json(body, ChatCompletionRequest)


def test_every_optional_field_is_walked():
    """The walk above would miss a field whose type cannot be described."""
    for kind in REQUESTS:
        described = inspect.type_info(kind)
        assert isinstance(described, inspect.StructType)
        assert {field.encode_name for field in described.fields if not field.required} == {
            name for of, name in OPTIONAL if of is kind
        }
