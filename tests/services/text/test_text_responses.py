"""The Responses API of a text service alone, as OpenAI's SDK sees it."""

from __future__ import annotations

import json
import shutil

import httpx
import openai
import pydantic
import pytest
from tests.response_streams import check_order, parsed

MODEL = "tiny-text"


def add_schema(name: str) -> dict:
    properties = {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"enum": ["x", "y"]}}
    return {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": properties, "required": ["a", "b"]},
        "strict": True,
    }


class Weather(pydantic.BaseModel):
    """The weather of a place."""

    city: str = pydantic.Field(max_length=6)
    celsius: int = pydantic.Field(ge=-50, le=60)


def raw_stream(text, **body) -> list[dict]:
    asked = {"model": MODEL, "input": "Hello", "stream": True, "max_output_tokens": 8, **body}
    answer = httpx.post(f"{text.url}/v1/responses", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parsed(answer.content)


def test_an_answer_and_a_stream_say_what_chat_says(client) -> None:
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "short"}, {"role": "user", "content": "Hello"}],
        max_tokens=8,
        temperature=0,
    )
    asked = {
        "model": MODEL,
        "input": "Hello",
        "instructions": "short",
        "max_output_tokens": 8,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.responses.create(**asked)
    assert whole.output_text.startswith(chat.choices[0].message.content)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.to_dict()["store"] is False
    assert whole.usage.output_tokens == 8
    with client.responses.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text


def test_every_event_of_a_stream_is_in_openais_order(text) -> None:
    final = check_order(raw_stream(text))
    assert final["status"] in {"completed", "incomplete"}


def test_the_sdk_parses_a_structured_answer(client) -> None:
    parsed_answer = client.responses.parse(
        model=MODEL, input="The weather?", text_format=Weather, temperature=1, max_output_tokens=200
    )
    assert isinstance(parsed_answer.output_parsed, Weather)


def test_a_forced_call_and_its_result_go_round(client, text) -> None:
    asked = {
        "model": MODEL,
        "tools": [add_schema("add")],
        "tool_choice": "required",
        "max_output_tokens": 300,
        "parallel_tool_calls": False,
    }
    final = check_order(raw_stream(text, **asked))
    calls = [item for item in final["output"] if item["type"] == "function_call"]
    assert calls
    assert json.loads(calls[0]["arguments"])["b"] in {"x", "y"}
    first = client.responses.create(input="Hello", **asked)
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        for call in first.output
        if call.type == "function_call"
    ]
    history = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output], *results]
    second = client.responses.create(model=MODEL, input=history, tools=[add_schema("add")], max_output_tokens=4)
    assert second.usage.input_tokens > first.usage.input_tokens


def test_log_probabilities_come_when_they_are_asked_for(client) -> None:
    answer = client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2
    )
    scores = answer.output[0].content[0].logprobs
    assert len(scores) == answer.usage.output_tokens
    assert all(len(score.top_logprobs) == 2 for score in scores)


@pytest.mark.parametrize(
    "body",
    [{"store": True}, {"previous_response_id": "resp_1"}, {"background": True}],
    ids=lambda body: next(iter(body)),
)
def test_a_service_alone_says_that_it_cannot_keep_responses(client, body: dict) -> None:
    with pytest.raises(openai.BadRequestError, match="gateway with Redis") as caught:
        client.responses.create(model=MODEL, input="Hello", **body)
    assert caught.value.param == next(iter(body))


def test_a_refused_stream_has_its_own_status(client) -> None:
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x" * 20_000, stream=True)


def test_truncation_makes_a_long_conversation_fit(client) -> None:
    turns = [{"role": role, "content": "word " * 100} for _ in range(8) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "Hello"})
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=turns, max_output_tokens=4)
    assert caught.value.code == "context_length_exceeded"
    answer = client.responses.create(model=MODEL, input=turns, max_output_tokens=4, truncation="auto")
    assert 100 < answer.usage.input_tokens < 4096


def test_tools_may_be_called_beside_a_format(client):
    """As openai-agents asks with `output_type` and tools."""
    asked = {"model": MODEL, "input": "abc", "temperature": 1, "max_output_tokens": 1000}
    for seed in range(4):
        made = client.responses.parse(
            **asked,
            text_format=Weather,
            tools=[add_schema("add")],
            parallel_tool_calls=False,
            extra_body={"seed": seed},
        )
        (item,) = made.output
        if item.type == "function_call":
            assert set(json.loads(item.arguments)) >= {"a", "b"}
        else:
            assert isinstance(made.output_parsed, Weather)


def test_the_tokens_of_a_request_are_counted_as_they_are_used(client):
    asked = {"model": MODEL, "input": [{"role": "user", "content": "abc"}], "instructions": "Be brief."}
    asked |= {"tools": [add_schema("add")], "tool_choice": "auto"}
    counted = client.responses.input_tokens.count(**asked)
    made = client.responses.create(**asked, max_output_tokens=1)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", made.usage.input_tokens)
    for refused, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": []}, "input")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_tokens.count(**{**asked, "instructions": None, **refused})
        assert caught.value.param == param


def test_the_tokens_of_thoughts_are_counted(start_service, tiny_text_model, tmp_path):
    """A model that never closes what its template opens: every token is a thought's."""
    directory = shutil.copytree(tiny_text_model, tmp_path / "thinking-text")
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>{# </think> #}")
    asked = {"model": "thinking-text", "temperature": 0}
    messages = [{"role": "user", "content": "abc"}]
    with start_service("text", text__model=str(directory), text__engine__threads="1") as service:
        client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=60)
        chat = client.chat.completions.create(**asked, messages=messages, max_tokens=20)
        response = client.responses.create(**asked, input="abc", max_output_tokens=20)
    assert chat.choices[0].message.reasoning_content
    assert chat.usage.completion_tokens_details.reasoning_tokens == chat.usage.completion_tokens == 20
    assert response.usage.output_tokens_details.reasoning_tokens == 20
