"""What changes no answer is accepted by the text service, as OpenAI's SDK and other clients send it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.services.text.test_text_tools import HELLO, MODEL, TOOLS, chat, post


def text_of(service, **body: Any) -> str:
    return chat(service, **{"temperature": 0, "max_tokens": 12, **body})["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "body",
    [
        {"store": False, "metadata": {"run": "7"}, "service_tier": "auto", "safety_identifier": "u"},
        {"store": True, "service_tier": "default", "user": "u", "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h", "verbosity": "low", "modalities": ["text"]},
        {"reasoning_effort": "high"},
        {"prediction": None, "audio": None, "web_search_options": None, "functions": None, "function_call": None},
        {"n": None, "stream": None, "presence_penalty": None, "parallel_tool_calls": None, "stop": None},
        {"top_k": -1},
        {"stop": ""},
        {"stop": []},
        {"stop": [""]},
        {"top_logprobs": 0},
        {"top_logprobs": 0, "logprobs": False},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"min_p": 0},
        {"response_format": {"type": "text"}},
        {"best_of": 1},
        {"stream_options": {"include_usage": True}},
        {"max_completion_tokens": 12},
    ],
    ids=json.dumps,
)
def test_what_is_off_or_a_hint_changes_no_answer(text, body):
    assert text_of(text, **body) == text_of(text)


def test_top_p_zero_takes_the_likeliest_tokens_whatever_the_temperature(text):
    assert text_of(text, top_p=0, temperature=1.7, seed=3) == text_of(text)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"top_k": -2}, "top_k"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"stream_options": {"include_everything": True}}, "stream_options.include_everything"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
        ({"messages": [{"role": "user", "content": "x", "annotations": [1]}]}, "messages[0].annotations"),
        (
            {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [*HELLO, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].content"),
        (
            {"messages": [*HELLO, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
            "messages[1].function_call",
        ),
    ],
    ids=json.dumps,
)
def test_what_would_change_the_answer_is_still_refused_by_name(text, body, param):
    answer = post(text, "/v1/chat/completions", **{"messages": HELLO, "max_tokens": 2, **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_completions_take_the_same_hints_and_forms_of_off(text):
    def ask(**body: Any) -> dict[str, Any]:
        answer = post(text, "/v1/completions", prompt="abc", temperature=0, max_tokens=5, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]

    plain = ask()
    for body in (
        {"best_of": 1, "echo": None, "logprobs": None, "suffix": None},
        {"logprobs": False, "stop": "", "top_k": -1, "user": "u", "store": False},
        {"stream_options": {"include_usage": True}, "logit_bias": None, "n": None},
    ):
        assert ask(**body) == plain
    assert len(ask(n=2, best_of=2)) == 2
    refused = post(text, "/v1/completions", prompt="abc", best_of=4)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")


def test_an_answer_of_the_sdk_goes_back_into_the_history_as_it_was_dumped(client):
    first = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=6)
    said = first.choices[0].message
    prompts = set()
    plain = {"role": "assistant", "content": said.content}
    for form in (plain, said, said.model_dump(), said.model_dump(exclude_none=True), said.to_dict()):
        again = [*HELLO, form, {"role": "user", "content": "So?"}]
        answer = client.chat.completions.create(model=MODEL, messages=again, temperature=0, max_tokens=2)
        prompts.add(answer.usage.prompt_tokens)
    assert len(prompts) == 1


def test_a_call_of_the_sdk_goes_back_into_the_history_as_it_was_dumped(client):
    asked = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "seed": 1, "max_tokens": 200}
    said = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "42"}
    prompts = set()
    litellm = {
        "content": None,
        "role": "assistant",
        "tool_calls": [
            {**call.model_dump(), "provider_specific_fields": None, "caller": None} for call in said.tool_calls
        ],
        "function_call": None,
        "provider_specific_fields": {"refusal": None},
        "reasoning_content": None,
        "thinking_blocks": None,
        "annotations": [],
    }
    for form in (said, said.model_dump(), said.model_dump(exclude_none=True), litellm):
        answer = client.chat.completions.create(model=MODEL, messages=[*HELLO, form, result], max_tokens=2)
        prompts.add(answer.usage.prompt_tokens)
    assert len(prompts) == 1


def test_a_refusal_in_a_history_is_what_the_assistant_said(text):
    def prompt_of(said: dict[str, Any]) -> str:
        tokens = post(text, "/tokenize", messages=[*HELLO, {"role": "assistant", **said}]).json()["tokens"]
        return post(text, "/detokenize", tokens=tokens).json()["prompt"]

    plain = prompt_of({"content": "I may not."})
    assert prompt_of({"content": None, "refusal": "I may not."}) == plain
    assert prompt_of({"content": [{"type": "refusal", "refusal": "I may not."}]}) == plain
    assert prompt_of({"content": None, "reasoning": "Hm."}) == prompt_of({"content": ""})


def test_allowed_tools_are_the_only_ones_that_are_offered_and_forced(text):
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    one = [tool for tool in TOOLS if tool["function"]["name"] == "stop"]
    fields = {"temperature": 0, "max_tokens": 60}
    offered = chat(text, tools=TOOLS, tool_choice=allowed("auto", "stop"), **fields)
    assert offered["usage"]["prompt_tokens"] == chat(text, tools=one, **fields)["usage"]["prompt_tokens"]
    forced = chat(text, tools=TOOLS, tool_choice=allowed("required", "stop"), parallel_tool_calls=False)
    (call,) = forced["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "stop"
    for choice, words in (
        (allowed("required", "nothing"), "nothing"),
        ({"type": "allowed_tools"}, "`allowed_tools` alone"),
        ({"type": "function"}, "`function` alone"),
        ({**allowed("auto", "stop"), "function": {"name": "stop"}}, "`allowed_tools` alone"),
    ):
        refused = post(text, "/v1/chat/completions", messages=HELLO, tools=TOOLS, tool_choice=choice)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tool_choice"
        assert words in refused.json()["error"]["message"]


def test_strict_may_stand_on_the_tool_too(text):
    stricter = [{**tool, "strict": True, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    assert text_of(text, tools=stricter) == text_of(text, tools=TOOLS)


def test_more_tokens_than_there_can_be_are_clamped_and_the_answer_says_length(client):
    body = {"ignore_eos": True, "min_p": 0}
    room = 4096 - len("user: Hello\nassistant:")
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=32_000, extra_body=body)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (room, "length")
    answer = client.completions.create(model=MODEL, prompt="x" * 4090, max_tokens=30, extra_body=body)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (6, "length")


def test_a_service_may_refuse_what_it_would_have_to_clamp(start_service, tiny_text_model):
    settings = {
        "text__model": str(tiny_text_model),
        "text__engine__threads": "1",
        "text__max_tokens_policy": "refuse",
        "text__max_output_tokens": "100",
    }
    with start_service("text", **settings) as service:
        over = post(service, "/v1/chat/completions", messages=HELLO, max_tokens=101)
        assert (over.status_code, over.json()["error"]["param"]) == (400, "max_tokens")
        assert "at most 100" in over.json()["error"]["message"]
        over = post(service, "/v1/completions", prompt="x" * 4090, max_tokens=30)
        assert over.json()["error"]["code"] == "context_length_exceeded"
        assert "4096 tokens" in over.json()["error"]["message"]
        assert post(service, "/v1/completions", prompt="x" * 4090, max_tokens=6).status_code == 200


def events(service, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{service.url}{path}", json={"model": MODEL, "stream": True, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "abc"})],
    ids=["chat", "completions"],
)
def test_every_chunk_counts_the_tokens_so_far_when_it_is_asked_to(text, path, body):
    body = {**body, "temperature": 0, "max_tokens": 7, "ignore_eos": True}
    found = events(text, path, **body, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1], found[-1]["choices"]) == (1, 7, [])
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {found[0]["usage"]["prompt_tokens"]}
    assert all(
        one["usage"]["total_tokens"] == one["usage"]["prompt_tokens"] + n for one, n in zip(found, counts, strict=True)
    )
    alone = events(text, path, **body, stream_options={"continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in alone] == counts[:-1]
    ends = events(text, path, **body, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in ends[:-1]] == [None] * (len(ends) - 1)
    assert all("usage" not in chunk for chunk in events(text, path, **body))


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "abc"})],
    ids=["chat", "completions"],
)
def test_chunks_are_padded_to_one_size_when_it_is_asked_to(text, path, body):
    body = {**body, "temperature": 0, "max_tokens": 7, "ignore_eos": True}
    for chunk in events(text, path, **body, stream_options={"include_obfuscation": True}):
        choice = chunk["choices"][0]
        said = choice.get("text") or choice.get("delta", {}).get("content") or ""
        assert (len(said) + len(chunk["obfuscation"])) % 32 == 0
    for options in ({"include_obfuscation": False}, {"include_usage": True}):
        assert all("obfuscation" not in chunk for chunk in events(text, path, **body, stream_options=options))
