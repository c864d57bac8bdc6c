"""The Responses API over chat completions: what a request becomes, and what becomes of an answer."""

from __future__ import annotations

import base64
import json

import msgspec
import pydantic
import pytest
from openai.types.responses import Response
from tests.response_streams import check_order, parsed

from tessera.errors import InvalidRequestError, OverloadedError
from tessera.protocols.responses.translation import ResponseTranslation
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk
from tessera.wire.conversation import ImagePart
from tessera.wire.decoding import decode_json
from tessera.wire.responses.request import ResponseRequest

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {"type": "text"}}
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def translation(**body) -> ResponseTranslation:
    return ResponseTranslation(decode_json(json.dumps({"model": "m", "input": "hi", **body}).encode(), ResponseRequest))


def messages(*items: dict, **body) -> list[dict]:
    return [
        {key: value for key, value in msgspec.to_builtins(message).items() if value is not None}
        for message in translation(input=list(items), **body).chat.messages
    ]


def completion(finish="stop", usage=True, **message) -> ChatCompletion:
    return msgspec.convert(
        {
            "id": "c",
            "created": 1,
            "model": "served",
            "choices": [{"index": 0, "message": {"content": None, **message}, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        },
        ChatCompletion,
    )


def chunk(finish=None, **delta) -> ChatCompletionChunk:
    logprobs = delta.pop("logprobs", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return msgspec.convert({"id": "c", "created": 1, "model": "served", "choices": [choice]}, ChatCompletionChunk)


def called(index: int, name: str, *arguments: str) -> list[ChatCompletionChunk]:
    first = {"index": index, "id": f"call{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    more = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [chunk(tool_calls=[call]) for call in (first, *more)]


USAGE = msgspec.convert(
    {
        "id": "c",
        "created": 1,
        "model": "served",
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    },
    ChatCompletionChunk,
)


def streamed(asked: ResponseTranslation, *chunks: ChatCompletionChunk) -> list[dict]:
    pieces = asked.begin()
    for each in (*chunks, USAGE):
        pieces += asked.chunk(each)
    return parsed(b"".join([*pieces, *asked.end()]))


def validated(answer) -> dict:
    """An answer as JSON, as the SDK's types read it strictly."""
    encoded = msgspec.json.encode(answer)
    pydantic.TypeAdapter(Response).validate_json(encoded, strict=True)
    return json.loads(encoded)


def test_a_text_is_one_message_of_the_user_behind_the_instructions() -> None:
    chat = translation(input="hi", instructions="be short").chat
    assert [(each.role, each.content) for each in chat.messages] == [("system", "be short"), ("user", "hi")]


def test_what_the_model_made_between_two_results_is_one_message() -> None:
    found = messages(
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}", "id": "fc"},
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "rain"}]},
    )
    assert [each["role"] for each in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["reasoning_content"] == "hm"
    assert found[1]["content"] == "I look"
    assert [call["id"] for call in found[1]["tool_calls"]] == ["a", "b"]
    assert [each["content"] for each in found[2:]] == ["sun", "rain"]


def test_system_texts_at_the_beginning_become_one_message() -> None:
    found = messages(
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "d"},
        instructions="a",
    )
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "a\n\nb\n\nc"),
        ("user", "hi"),
        ("system", "d"),
    ]


def test_an_item_that_comes_back_from_an_answer_is_read_whatever_else_it_has() -> None:
    found = messages(
        {"role": "user", "content": "hi", "status": None},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a"}],
            "phase": None,
            "x": 1,
        },
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "namespace": None, "async": None},
    )
    assert found[1]["tool_calls"][0]["function"]["name"] == "f"


def test_pictures_files_and_recordings_become_parts_of_a_message() -> None:
    data = "data:text/plain;base64," + base64.b64encode("grüße".encode()).decode()
    parts = [
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": PICTURE, "detail": "original"},
        {"type": "input_file", "filename": "a.txt", "file_data": data},
    ]
    content = translation(input=[{"role": "user", "content": parts}]).chat.messages[0].content
    assert isinstance(content[1], ImagePart)
    assert (content[1].image_url.url, content[1].image_url.detail) == (PICTURE, "high")
    assert (content[2].file.file_data, content[2].file.filename) == (data, "a.txt")
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    heard = translation(input=[{"role": "user", "content": [sound]}]).chat.messages[0].content
    assert (heard[0].input_audio.data, heard[0].input_audio.format) == ("UklGRg==", "wav")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": "x", "colour": 1}]}, "input[0].colour"),
        ({"input": [{"type": "image_generation_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["x"]}]}, "tools[0]"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{**WEATHER, "colour": 1}]}, "tools[0].colour"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0].environment"),
        ({"colour": 1}, "colour"),
        (
            {"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_place(body: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translation(**body)
    assert caught.value.param == param


def test_every_parameter_may_be_an_explicit_null() -> None:
    names = [field.encode_name for field in msgspec.structs.fields(ResponseRequest) if not field.required]
    asked = translation(**{**dict.fromkeys(names), "input": "hi"})
    assert asked.chat.messages[0].content == "hi"
    validated(asked.answer(completion(content="a")))


def test_hints_are_accepted() -> None:
    translation(
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        service_tier="auto",
        client_metadata={"a": {"b": 1}},
        max_tool_calls=3,
        stream_options={"include_obfuscation": False},
        text={"verbosity": "low"},
    )


def test_parameters_reach_the_chat_request() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chat = translation(
        text={"format": {"type": "json_schema", "name": "out", "schema": schema, "strict": True}},
        reasoning={"effort": "max"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=9,
        temperature=0.5,
        top_p=0,
        parallel_tool_calls=False,
        stream=True,
    ).chat
    assert chat.response_format.json_schema.schema == schema
    assert (chat.reasoning_effort, chat.logprobs, chat.top_logprobs) == ("xhigh", True, 2)
    assert (chat.max_completion_tokens, chat.temperature, chat.parallel_tool_calls) == (9, 0.5, False)
    assert 0 < chat.top_p < 1e-5
    assert chat.stream_options.include_usage


def test_tools_become_functions_and_a_web_search_is_left_out() -> None:
    space = {"type": "namespace", "name": "agents", "description": "d", "tools": [{**WEATHER, "name": "spawn"}]}
    asked = translation(
        tools=[WEATHER, PATCH, space, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}]
    )
    assert [tool.function.name for tool in asked.chat.tools] == [
        "weather",
        "apply_patch",
        "agents__spawn",
        "local_shell",
    ]
    shown = validated(asked.answer(completion(content="a")))["tools"]
    assert [tool["type"] for tool in shown] == ["function", "custom", "namespace", "local_shell"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "weather"}, "weather"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "local_shell"}, "local_shell"),
    ],
)
def test_a_choice_of_tools_reaches_the_chat_request(choice, expected) -> None:
    chat = translation(tools=[WEATHER, PATCH, {"type": "local_shell"}], tool_choice=choice).chat
    assert (chat.tool_choice if isinstance(choice, str) else chat.tool_choice.function.name) == expected


def test_allowed_tools_are_the_only_ones_that_are_offered() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}
    chat = translation(tools=[WEATHER, PATCH], tool_choice=choice).chat
    assert [tool.function.name for tool in chat.tools] == ["apply_patch"]
    assert chat.tool_choice == "required"


def test_auto_without_tools_is_no_choice() -> None:
    assert translation(tools=[], tool_choice="auto").chat.tool_choice is None


def test_an_answer_has_thought_text_and_calls_in_this_order() -> None:
    calls = [{"id": "a", "function": {"name": "weather", "arguments": '{"city": "x"}'}}]
    asked = translation(tools=[WEATHER], metadata={"k": "v"}, user="u")
    shown = validated(asked.answer(completion("tool_calls", content="text", reasoning_content="hm", tool_calls=calls)))
    assert [item["type"] for item in shown["output"]] == ["reasoning", "message", "function_call"]
    assert shown["status"] == "completed"
    assert shown["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert (shown["metadata"], shown["user"], shown["model"]) == ({"k": "v"}, "u", "served")
    assert shown["output"][2]["call_id"] == "a"


def test_an_answer_that_was_cut_is_incomplete() -> None:
    shown = validated(translation().answer(completion("length", content="te")))
    assert shown["status"] == "incomplete"
    assert shown["incomplete_details"] == {"reason": "max_output_tokens"}
    assert shown["output"][0]["status"] == "incomplete"


def test_a_stream_has_openais_order() -> None:
    asked = translation(tools=[WEATHER, PATCH], stream=True)
    patch = json.dumps({"input": "*** Begin\n+é"})
    events = streamed(
        asked,
        chunk(role="assistant"),
        chunk(reasoning_content="h"),
        chunk(reasoning_content="m"),
        chunk(content="te"),
        chunk(content="xt"),
        *called(0, "weather", '{"city": ', '"x"}'),
        *called(1, "apply_patch", patch[:7], patch[7:]),
        chunk("tool_calls"),
    )
    final = check_order(events)
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert final["output"][3]["input"] == "*** Begin\n+é"
    assert final["usage"]["total_tokens"] == 7
    assert [event["type"] for event in events[:5]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
    ]


def test_a_thought_comes_as_a_summary_when_one_is_asked_for() -> None:
    asked = translation(stream=True, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    final = check_order(streamed(asked, chunk(reasoning_content="hm"), chunk(content="a"), chunk("stop")))
    thought = final["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
    back = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    assert messages({"role": "user", "content": "x"}, back)[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("kind", "arguments", "action"),
    [
        ("local_shell", {"command": ["ls"]}, {"type": "exec", "command": ["ls"], "env": {}}),
        ("shell", {"commands": ["ls", "pwd"]}, {"commands": ["ls", "pwd"]}),
        ("apply_patch", {"type": "delete_file", "path": "a"}, {"type": "delete_file", "path": "a"}),
    ],
)
def test_tools_of_the_client_come_back_as_the_items_that_it_knows(kind, arguments, action) -> None:
    asked = translation(tools=[{"type": kind}], stream=True)
    text = json.dumps(arguments)
    item = check_order(streamed(asked, *called(0, kind, text[:5], text[5:]), chunk("tool_calls")))["output"][0]
    made = item["operation" if kind == "apply_patch" else "action"]
    assert made.items() >= action.items()
    (message,) = messages(item)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]).items() >= arguments.items()


def test_a_custom_tool_gets_what_the_model_wrote_even_if_it_is_no_object() -> None:
    asked = translation(tools=[PATCH], stream=True)
    item = check_order(streamed(asked, *called(0, "apply_patch", "*** Begin"), chunk("tool_calls")))["output"][0]
    assert item["input"] == "*** Begin"


def test_log_probabilities_come_with_the_text_that_they_belong_to() -> None:
    def score(token: str) -> dict:
        return {"content": [{"token": token, "logprob": -1.0, "bytes": [1], "top_logprobs": []}]}

    asked = translation(stream=True, include=["message.output_text.logprobs"])
    events = streamed(
        asked, chunk(content="", logprobs=score("a")), chunk(content="ab", logprobs=score("b")), chunk("stop")
    )
    final = check_order(events)
    assert [one["token"] for one in final["output"][0]["content"][0]["logprobs"]] == ["a", "b"]


def test_an_answer_without_a_token_is_a_message_without_text() -> None:
    assert check_order(streamed(translation(stream=True), chunk("stop")))["output"][0]["content"][0]["text"] == ""
    assert validated(translation().answer(completion(content="")))["output"][0]["content"][0]["text"] == ""


def test_a_stream_that_fails_closes_its_item_and_says_why() -> None:
    asked = translation(stream=True)
    pieces = [*asked.begin(), *asked.chunk(chunk(content="te")), *asked.failed(OverloadedError("the queue is full"))]
    final = check_order(parsed(b"".join(pieces)))
    assert final["error"] == {"code": "rate_limit_exceeded", "message": "the queue is full"}
    assert final["output"][0]["status"] == "incomplete"


def test_truncation_leaves_out_the_oldest_turns_and_never_the_last() -> None:
    turns = [
        {"role": "system", "content": "s"},
        *[{"role": role, "content": str(place)} for place in range(9) for role in ("user", "assistant")],
        {"role": "user", "content": "last"},
    ]
    asked = translation(input=turns, truncation="auto")
    lengths = [len(asked.chat.messages)]
    while asked.shorten():
        lengths.append(len(asked.chat.messages))
        assert asked.chat.messages[0].content == "s"
        assert asked.chat.messages[1].role == "user"
    assert lengths == sorted(set(lengths), reverse=True)
    assert [each.content for each in asked.chat.messages] == ["s", "last"]
    assert not translation(input=turns).shorten()
