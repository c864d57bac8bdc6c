"""Requests of Ollama's chat and generate: what becomes of each part, what is a hint, what is refused and its name."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tessera.errors import InvalidRequestError
from tessera.protocols.ollama.request import chat_of_chat, chat_of_generate
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera.wire.ollama import OllamaChatRequest, OllamaGenerateRequest

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 20).decode()
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


def chat(**fields: Any) -> ChatCompletionRequest:
    given = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return chat_of_chat(decode_json(json.dumps(given).encode(), OllamaChatRequest))


def generate(**fields: Any) -> ChatCompletionRequest:
    given = {"model": "m", "prompt": "Hi", **fields}
    return chat_of_generate(decode_json(json.dumps(given).encode(), OllamaGenerateRequest))


def test_options_become_sampling_and_those_of_loading_are_hints() -> None:
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "seed": 7,
        "stop": ["END"],
        "repeat_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "mirostat": 0,
        "num_ctx": 4096,
        "num_gpu": 99,
        "repeat_last_n": 64,
        "use_mmap": True,
    }
    made = chat(options=options, keep_alive="5m")
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "repetition_penalty")
    assert [getattr(made, name) for name in names] == [5, 0.5, 3, 0.9, 0.1, 0.8, 7, ["END"], 1.2]
    assert (made.presence_penalty, made.frequency_penalty) == (0.1, 0.2)
    assert made.stream


def test_values_that_mean_no_limit() -> None:
    made = chat(options={"num_predict": -1, "top_k": -1, "top_p": 0, "stop": []})
    assert (made.max_tokens, made.top_k, made.top_p, made.temperature, made.stop) == (None, 0, None, 0.0, None)


@pytest.mark.parametrize(
    ("think", "effort"), [(None, None), (True, "medium"), (False, "none"), ("low", "low"), ("high", "high")]
)
def test_think_is_reasoning_effort(think: Any, effort: str | None) -> None:
    assert chat(think=think).reasoning_effort == effort


def test_formats() -> None:
    assert chat(format="").response_format is None
    assert type(chat(format="json").response_format).__name__ == "JsonObjectFormat"
    form = chat(format={"type": "object"}).response_format
    assert form.json_schema.schema == {"type": "object"}  # type: ignore[union-attr]


def test_results_find_their_calls_by_name_by_id_or_in_their_order() -> None:
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, CALL | {"id": "own"}]},
        {"role": "tool", "content": "second", "tool_call_id": "own"},
        {"role": "tool", "content": "first", "tool_name": "f"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": {}, "index": 0}}]},
        {"role": "tool", "content": "third"},
    ]
    messages = chat(messages=turns).messages
    assert [message.tool_call_id for message in messages if message.role == "tool"] == ["own", "000000001", "000000002"]
    calls = messages[1].tool_calls
    assert calls is not None
    assert [(call.id, call.function.arguments) for call in calls] == [("000000001", '{"a":1}'), ("own", '{"a":1}')]
    assert messages[1].reasoning_content == "hm"


def test_images_are_data_urls_of_their_own_type() -> None:
    for made in (chat(messages=[{"role": "user", "content": "?", "images": [PNG]}]), generate(images=[PNG])):
        content = made.messages[0].content
        assert isinstance(content, list)
        assert content[0].url == f"data:image/png;base64,{PNG}"  # type: ignore[union-attr]


def test_a_prompt_is_a_turn_with_its_system_text_or_stays_as_it_is() -> None:
    made = generate(system="S")
    assert [(message.role, message.content) for message in made.messages] == [("system", "S"), ("user", "Hi")]
    assert [message.content for message in generate(raw=True).messages] == ["Hi"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"raw": True, "system": "S"}, "system"),
        ({"suffix": "x", "images": [PNG]}, "images"),
        ({"images": ["ä"]}, "images[0]"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"shiny": 1}}, "options.shiny"),
        ({"format": "xml"}, "format"),
        ({"width": 512}, "width"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        generate(**given)
    assert refused.value.param == param


def test_a_result_without_a_call_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].* was not called"):
        chat(messages=[{"role": "tool", "content": "x"}])
