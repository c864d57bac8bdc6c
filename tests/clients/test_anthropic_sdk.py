"""Anthropic's SDK: messages, streams, tools, counting, models and errors."""

from __future__ import annotations

import anthropic
import pytest

TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(gateway):
    return anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=120)


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_a_message_is_answered(gateway, client, which):
    answer = client.messages.create(
        model=getattr(gateway, which), max_tokens=16, messages=[{"role": "user", "content": "SAY hello"}]
    )
    assert answer.type == "message"
    assert answer.content[0].text
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert answer.usage.input_tokens > 0


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_a_stream_is_accumulated_by_the_sdk(gateway, client, which):
    with client.messages.stream(
        model=getattr(gateway, which),
        max_tokens=16,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": "SAY one two three"}],
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_a_tool_is_used_and_its_result_answered(gateway, client, which):
    model = getattr(gateway, which)
    messages = [{"role": "user", "content": 'What is the weather in Rome? CALL weather {"city": "Rome"}'}]
    first = client.messages.create(
        model=model,
        max_tokens=60,
        tools=[TOOL],
        tool_choice={"type": "any"},
        messages=messages,
        extra_body={"temperature": 0},
    )
    assert first.stop_reason == "tool_use"
    call = next(block for block in first.content if block.type == "tool_use")
    assert "city" in call.input
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
    ]
    second = client.messages.create(
        model=model, max_tokens=16, tools=[TOOL], tool_choice={"type": "none"}, messages=messages
    )
    assert second.content[0].text


def test_tokens_are_counted_without_an_answer(gateway, client):
    counted = client.messages.count_tokens(model=gateway.text, messages=[{"role": "user", "content": "Hello there"}])
    answer = client.messages.create(
        model=gateway.text, max_tokens=1, messages=[{"role": "user", "content": "Hello there"}]
    )
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_models_are_listed_in_the_sdks_shape(gateway, client):
    assert gateway.text in {model.id for model in client.models.list()}


def test_errors_are_the_sdks_own(gateway, client):
    ask = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="no-such-model", **ask)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0).messages.create(
            model=gateway.text, **ask
        )
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=gateway.text, extra_body={"no_such_parameter": 1}, **ask)
