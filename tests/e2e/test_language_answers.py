"""Chat, completions, embeddings and images in chat, asked through the gateway by OpenAI's own SDK."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import openai
import pytest

from tessera.demo.page import picture

TEXT = "smollm2-135m-instruct"
VISION = "scenes-vision"
QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
IMAGE_URL = "data:image/png;base64," + base64.b64encode(picture()).decode()


def about_a_picture(url: str) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


def test_the_capital_of_japan_is_tokyo(suite: Any) -> None:
    answer = suite.sdk().chat.completions.create(model=TEXT, messages=QUESTION, temperature=0, max_tokens=24)
    assert "Tokyo" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == TEXT
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says_and_ends_with_the_same_usage(suite: Any, counted: Any) -> None:
    asked: dict[str, Any] = {"model": TEXT, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = suite.sdk().chat.completions.create(**asked)
    chunks = list(suite.sdk().chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = [chunk for chunk in chunks if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == whole.choices[0].message.content
    assert said[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in said if chunk.choices[0].finish_reason] == ["stop"]
    assert len([chunk for chunk in said if chunk.choices[0].delta.content]) > 3, "it must come in pieces"
    assert chunks[-1].choices == []
    assert counted(chunks[-1].usage) == counted(whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1


def test_choices_differ_by_seed_and_can_be_had_again(suite: Any) -> None:
    asked: dict[str, Any] = {
        "model": TEXT,
        "messages": [{"role": "user", "content": "Name an animal."}],
        "temperature": 1.5,
        "max_tokens": 8,
        "n": 3,
        "seed": 7,
    }
    first, second = (suite.sdk().chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts == [choice.message.content for choice in second.choices]
    assert first.usage.completion_tokens <= 3 * 8


def test_logprobs_are_those_of_the_said_tokens_likeliest_first(suite: Any) -> None:
    answer = suite.sdk().chat.completions.create(
        model=TEXT, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True, top_logprobs=4
    )
    (choice,) = answer.choices
    tokens = choice.logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        top = [other.logprob for other in token.top_logprobs]
        assert len(top) == 4
        assert top == sorted(top, reverse=True)
        assert token.logprob == top[0] <= 0, "a greedy answer takes the likeliest"
        assert sum(math.exp(value) for value in top) <= 1 + 1e-6


def test_stop_strings_end_an_answer_and_are_not_part_of_it(suite: Any) -> None:
    answer = suite.sdk().chat.completions.create(
        model=TEXT, messages=QUESTION, temperature=0, max_tokens=24, stop=["Tokyo"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "The capital of Japan is "


def test_completions_continue_each_of_several_prompts(suite: Any) -> None:
    client = suite.sdk()
    asked: dict[str, Any] = {"model": TEXT, "temperature": 0, "max_tokens": 8}
    prompts = ["The sun rises in the", "One, two, three,"]
    both = client.completions.create(prompt=prompts, **asked)
    alone = [client.completions.create(prompt=prompt, **asked).choices[0].text for prompt in prompts]
    assert [choice.text for choice in both.choices] == alone
    assert alone[0].startswith(" sky")
    stream = client.completions.create(prompt=prompts[0], stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == alone[0]
    echoed = client.completions.create(prompt=prompts[0], echo=True, **asked)
    assert echoed.choices[0].text == prompts[0] + alone[0]


def test_embeddings_are_of_length_one_in_order_and_the_same_in_base64(suite: Any) -> None:
    client = suite.sdk()
    words = ["a small boat on the sea", "a little ship on the ocean", "quarterly tax return"]
    # The SDK asks for base64 when nothing is said, and decodes it.
    packed = [entry.embedding for entry in client.embeddings.create(model=TEXT, input=words).data]
    answer = client.embeddings.create(model=TEXT, input=words, encoding_format="float")
    plain = [entry.embedding for entry in answer.data]
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert [len(vector) for vector in plain] == [576] * 3
    for one, other in zip(plain, packed, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        assert math.hypot(*one) == pytest.approx(1, abs=1e-5)
    boat, ship, tax = plain
    assert (
        math.sumprod(boat, ship) > math.sumprod(boat, tax)
        if hasattr(math, "sumprod")
        else dot(boat, ship) > dot(boat, tax)
    )
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_a_picture_in_chat_is_seen(suite: Any) -> None:
    client = suite.sdk()
    asked: dict[str, Any] = {"model": VISION, "temperature": 0, "max_tokens": 12}
    seen = client.chat.completions.create(messages=about_a_picture(IMAGE_URL), **asked)
    words = [{"role": "user", "content": "What is this?"}]
    unseen = client.chat.completions.create(messages=words, **asked)
    assert seen.usage.prompt_tokens > unseen.usage.prompt_tokens, "a picture has tokens of its own"
    assert "red circle" in seen.choices[0].message.content
    pieces = client.chat.completions.create(messages=about_a_picture(IMAGE_URL), stream=True, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
    assert text == seen.choices[0].message.content


def test_a_picture_for_a_model_that_cannot_see_is_refused_by_field(suite: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        suite.sdk().chat.completions.create(model=TEXT, messages=about_a_picture(IMAGE_URL))
    assert refused.value.param == "messages[0].content[1]"
    with pytest.raises(openai.BadRequestError) as refused:
        suite.sdk().chat.completions.create(model=VISION, messages=about_a_picture("https://example.com/cat.png"))
    assert refused.value.param == "messages[0].content[1].image_url.url"
    assert "data:image/png;base64" in refused.value.message


def test_a_tool_is_called_and_its_result_is_used_through_the_gateway(suite: Any) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
        },
    }
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    client = suite.sdk()
    called = client.chat.completions.create(
        model=TEXT,
        messages=asked,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=80,
    )
    assert called.choices[0].finish_reason == "tool_calls"
    call = called.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"}
    told = client.chat.completions.create(
        model=TEXT, messages=[*asked, called.choices[0].message, result], temperature=0, max_tokens=60
    )
    assert "21" in told.choices[0].message.content or "sunny" in told.choices[0].message.content


def test_a_structured_answer_and_its_tokens_through_the_gateway(suite: Any) -> None:
    schema = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 12}}, "required": ["capital"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    client = suite.sdk()
    asked: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    with client.chat.completions.stream(
        model=TEXT, messages=asked, response_format=form, temperature=0, max_tokens=60
    ) as stream:
        answer = stream.get_final_completion().choices[0]
    assert json.loads(answer.message.content) == {"capital": "Paris"}
    found = client.post("/../tokenize", body={"model": TEXT, "messages": QUESTION}, cast_to=dict[str, Any])
    whole = client.chat.completions.create(model=TEXT, messages=QUESTION, max_tokens=1)
    assert found["count"] == whole.usage.prompt_tokens
    text = client.post("/../detokenize", body={"model": TEXT, "tokens": found["tokens"]}, cast_to=dict[str, Any])
    assert "capital of Japan" in text["prompt"]
