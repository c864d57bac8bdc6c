"""Requests of Anthropic's messages: what becomes of each part, what is a hint, what is refused and how it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import InvalidRequestError
from tessera.protocols.messages.request import chat_request
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera.wire.messages import CountTokensRequest, MessagesRequest

RECORDED = sorted((Path(__file__).parent / "claude_code").glob("*.json"))
PNG = "iVBORw0KGgo="


def chat_of(**fields: Any) -> ChatCompletionRequest:
    given = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return chat_request(decode_json(json.dumps(given).encode(), MessagesRequest))


def said(**fields: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in chat_of(**fields).messages]


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_request_as_claude_code_sent_it_becomes_a_chat_request(path: Path) -> None:
    body = json.loads(path.read_text())["body"]
    chat = chat_request(decode_json(json.dumps(body).encode(), MessagesRequest))
    assert [tool.function.name for tool in chat.tools or []] == [tool["name"] for tool in body["tools"]]
    assert chat.tools is not None
    assert chat.tools[0].function.parameters == body["tools"][0]["input_schema"]
    assert chat.max_tokens == body["max_tokens"]
    assert chat.reasoning_effort in {"high", "xhigh"}
    assert chat.stream
    roles = [message.role for message in chat.messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert "billing" not in str(chat.messages[0].content)
    call = chat.messages[2]
    assert call.tool_calls is not None
    assert json.loads(call.tool_calls[0].function.arguments)["command"] == "echo tessera-ran"
    assert call.reasoning_content == "I list."
    assert (chat.messages[3].content, chat.messages[3].tool_call_id) == ("tessera-ran", "toolu_1")


def test_an_instruction_in_the_midst_stays_at_its_place_and_is_marked() -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go."},
    ]
    found = said(messages=turns, system="S")
    reminder = "Hi\n<system-reminder>\nBe brief.\n</system-reminder>"
    assert found == [("system", "S"), ("user", reminder), ("assistant", "Yes."), ("user", "Go.")]


def test_a_system_prompt_of_blocks_is_one_text_and_the_billing_line_is_left_out() -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cc_entrypoint=cli;"},
        {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}},
        {"type": "text", "text": "Two."},
    ]
    assert said(system=blocks)[0] == ("system", "One.\nTwo.")
    assert said(system=[])[0][0] == "user"


def test_turns_of_one_role_in_a_row_are_one_turn() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]
    assert said(messages=turns) == [("user", "a\nb"), ("assistant", "cd"), ("user", "e")]


def test_results_of_calls_are_messages_of_their_own_and_their_images_follow() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    called = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"n": n}} for n in range(4)]
    results = [
        {"type": "tool_result", "tool_use_id": "t0", "content": [{"type": "text", "text": "seen"}, image]},
        {"type": "tool_result", "tool_use_id": "t1", "content": "no such file", "is_error": True},
        {"type": "tool_result", "tool_use_id": "t2"},
        {"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "tool_reference", "tool_name": "g"}]},
        {"type": "text", "text": "Go on."},
    ]
    turns = [*user({"type": "text", "text": "Hi"}), {"role": "assistant", "content": called}, *user(*results)]
    chat = chat_of(messages=turns)
    results_said = [(message.tool_call_id, message.content) for message in chat.messages if message.role == "tool"]
    assert results_said == [
        ("t0", "seen"),
        ("t1", "Error: no such file"),
        ("t2", ""),
        ("t3", "The tool g can be called now."),
    ]
    last = chat.messages[-1]
    assert [message.role for message in chat.messages] == ["user", "assistant", *["tool"] * 4, "user"]
    assert isinstance(last.content, list)
    kinds = [type(part).__name__ for part in last.content]
    assert kinds == ["TextPart", "ImagePart", "TextPart"]


def test_documents_and_search_results_are_read_as_text() -> None:
    blocks = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": "inner"}},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]},
    ]
    text = "Document: T\nContext: C\nbody\ninner\nSearch result: t\nSource: s\nfound"
    assert said(messages=user(*blocks)) == [("user", text)]


def test_a_document_of_bytes_is_a_file_of_chats() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    (_, parts), *_ = said(messages=user({"type": "document", "title": "a.pdf", "source": source}))
    assert parts[1].file.file_data == "data:application/pdf;base64,JVBERi0="
    assert parts[1].file.filename == "a.pdf"


def test_thoughts_stay_in_the_history_unless_it_says_how_many() -> None:
    turns: list[Any] = []
    for n in range(3):
        turns.append({"role": "user", "content": "?"})
        thought = {"type": "thinking", "thinking": f"thought {n}", "signature": "any"}
        hidden = {"type": "redacted_thinking", "data": "xyz"}
        turns.append({"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "!"}]})
    turns.append({"role": "user", "content": "?"})

    def thoughts(keep: Any) -> list[str | None]:
        edit = {"type": "clear_thinking_20251015"} | ({} if keep is None else {"keep": keep})
        chat = chat_of(messages=turns, context_management={"edits": [edit, {"type": "clear_tool_uses_20250919"}]})
        return [message.reasoning_content for message in chat.messages if message.role == "assistant"]

    everything = ["thought 0", "thought 1", "thought 2"]
    assert thoughts("all") == thoughts({"type": "all"}) == thoughts(None) == everything
    assert thoughts({"type": "thinking_turns", "value": 1}) == [None, None, "thought 2"]


@pytest.mark.parametrize(
    ("given", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "high"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None),
        ({"thinking": {"type": "between_tools"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "xhigh"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "none"),
        ({"output_config": {"effort": "low"}}, "low"),
    ],
)
def test_thinking_and_effort_are_reasoning_effort(given: dict[str, Any], effort: str | None) -> None:
    assert chat_of(**given).reasoning_effort == effort


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, None, False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, "f", True),
    ],
)
def test_tool_choices(choice: Any, expected: str | None, parallel: bool) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "input_examples": [{"a": 1}], "description": "D"}
    chat = chat_of(tools=[tool], tool_choice=choice)
    found = chat.tool_choice
    assert (found if isinstance(found, str | None) else found.function.name) == expected  # type: ignore[union-attr]
    assert chat.parallel_tool_calls is parallel
    assert chat.tools is not None
    assert chat.tools[0].function.description == 'D\nExamples of input:\n{"a": 1}'


def test_a_search_for_deferred_tools_is_a_hint_because_all_tools_are_offered() -> None:
    tools = [
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "custom", "name": "f", "input_schema": {}, "defer_loading": True, "eager_input_streaming": True},
    ]
    assert [tool.function.name for tool in chat_of(tools=tools).tools or []] == ["f"]


def test_a_schema_of_the_answer_is_structured_output_by_either_name() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for given in ({"output_config": {"format": form}}, {"output_format": form}):
        found = chat_of(**given).response_format
        assert found is not None
        assert found.json_schema.schema == {"type": "object"}  # type: ignore[union-attr]


def test_sampling_is_passed_on_and_hints_are_accepted() -> None:
    chat = chat_of(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        betas=["x"],
        speed="fast",
        mcp_servers=[],
        diagnostics={"previous_message_id": "m"},
        container=None,
    )
    assert (chat.temperature, chat.top_p, chat.top_k, chat.stop) == (0.5, 0.9, 4, ["END"])
    assert chat.user is None
    assert chat_of(top_p=0, temperature=1).temperature == 0


def test_a_prompt_whose_tokens_are_counted_needs_no_limit() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'
    assert chat_request(decode_json(body, CountTokensRequest)).messages[0].content == "Hi"


IMAGE_URL = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
CITED = {"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}}


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "calls no other servers"),
        ({"container": "c"}, "container", "nothing is run here"),
        ({"inference_geo": "eu"}, "inference_geo", "cannot choose where"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type", "web_search_20250305"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "bash_20250124"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "required"),
        ({"tools": [{"name": "f", "input_schema": {}, "shiny": 1}]}, "tools[0].shiny", "not a parameter"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, None, "compact_20260112"),
        ({"messages": user(IMAGE_URL)}, "messages[0].content[0].source", "not fetched"),
        ({"messages": user(CITED)}, "messages[0].content[0].citations", "does not cite"),
        ({"messages": user({"type": "tool_use", "id": "a", "name": "f", "input": {}})}, None, "the assistant's turn"),
        ({"messages": user({"type": "web_search_tool_result"})}, None, "web_search_tool_result"),
        ({"temperature": 1.5}, "temperature", "<= 1"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"shiny": 1}, "shiny", "not a parameter"),
        ({"messages": [{"role": "assistant", "content": "I"}, {"role": "tool", "content": "x"}]}, None, "tool"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(given: dict[str, Any], param: str | None, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat_of(**given)
    assert words in refused.value.message
    if param is not None:
        assert refused.value.param == param


def begun(*blocks: Any, **fields: Any) -> ChatCompletionRequest:
    return chat_of(
        messages=[*user({"type": "text", "text": "Hi"}), {"role": "assistant", "content": list(blocks)}], **fields
    )


def test_the_assistants_last_turn_is_what_the_answer_goes_on_with() -> None:
    chat = begun({"type": "text", "text": "The"}, {"type": "text", "text": " answer"})
    assert (chat.messages[-1].role, chat.messages[-1].content) == ("assistant", "The answer")
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    assert not chat_of().continue_final_message
    assert chat_of().add_generation_prompt is None


@pytest.mark.parametrize(
    ("block", "fields", "words"),
    [
        ({"type": "text", "text": "The "}, {}, "whitespace"),
        ({"type": "text", "text": "The\n"}, {}, "whitespace"),
        ({"type": "text", "text": ""}, {}, "no text"),
        ({"type": "thinking", "thinking": "Hm.", "signature": "s"}, {}, "no text"),
        ({"type": "tool_use", "id": "a", "name": "f", "input": {}}, {}, "result"),
        (
            {"type": "text", "text": "The"},
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "format",
        ),
    ],
)
def test_what_no_answer_can_go_on_with_is_refused(block: Any, fields: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        begun(block, **fields)
    assert refused.value.param == "messages"
