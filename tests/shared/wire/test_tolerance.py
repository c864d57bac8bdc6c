"""What a body may say that changes no answer, and what is refused by name all the same."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from tessera import wire
from tessera.errors import InvalidRequestError
from tessera.wire import tolerance
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json


def request_types() -> list[type[msgspec.Struct]]:
    """Every type of a request body, from all modules of the wire."""
    modules = [importlib.import_module(one.name) for one in pkgutil.walk_packages(wire.__path__, "tessera.wire.")]
    found = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__name__.endswith("Request")
    }
    return sorted(found, key=lambda each: each.__name__)


def least(expected: inspect.Type) -> Any:
    """The least value that a type takes."""
    match expected:
        case inspect.Metadata():
            return least(expected.type)
        case inspect.UnionType():
            return least(expected.types[0])
        case inspect.StructType():
            tag = {expected.tag_field: expected.tag} if expected.tag_field else {}
            return tag | {field.encode_name: least(field.type) for field in expected.fields if field.required}
        case inspect.ListType():
            return [least(expected.item_type)] * (expected.min_length or 0)
        case inspect.LiteralType():
            return expected.values[0]
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return "1"  # which also looks like a number where one is written as text
        case _:
            return {}


REQUESTS: dict[type[Any], dict[str, Any]] = {kind: least(inspect.type_info(kind)) for kind in request_types()}
"""Every request, with the least that it must have."""
STRICT = [kind for kind in REQUESTS if kind.__struct_config__.forbid_unknown_fields]
OPTIONAL = [
    (kind, field.encode_name) for kind in REQUESTS for field in msgspec.structs.fields(kind) if not field.required
]


def decoded(kind: type[Any], **fields: Any) -> Any:
    return decode_json(json.dumps({**REQUESTS[kind], **fields}).encode(), kind)


def test_the_requests_that_clients_send_most_are_among_those_that_are_walked():
    names = {kind.__name__ for kind in REQUESTS}
    assert names >= {"ChatCompletionRequest", "CompletionRequest", "EmbeddingRequest", "TokenizeRequest"}
    assert names >= {"SpeechRequest", "TranscriptionRequest", "ImageGenerationRequest", "VideoCreateRequest"}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatCompletionRequest:
    given = list(messages) or [{"role": "user", "content": "x"}]
    return decoded(ChatCompletionRequest, messages=given, **fields)


@pytest.mark.parametrize(("kind", "name"), OPTIONAL, ids=lambda value: getattr(value, "__name__", value))
def test_an_explicit_null_of_any_optional_field_leaves_it_out(kind, name):
    assert decoded(kind, **{name: None}) == decoded(kind)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_all_nulls_at_once_leave_everything_out(kind):
    assert decoded(kind, **{name: None for of, name in OPTIONAL if of is kind}) == decoded(kind)


@pytest.mark.parametrize("kind", STRICT, ids=lambda kind: kind.__name__)
def test_a_null_of_a_required_field_and_an_unknown_field_with_null_are_refused_by_name(kind):
    for required in (field.encode_name for field in msgspec.structs.fields(kind) if field.required):
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
