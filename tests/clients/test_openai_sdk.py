"""OpenAI's SDK: chat, responses, embeddings, speech and models, with its own parsers."""

from __future__ import annotations

import json
import time

import openai
import pydantic
import pytest
from openai.types.responses import ResponseStreamEvent

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FLAT_TOOL = {"type": "function", **TOOL["function"], "strict": False}


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


@pytest.fixture(scope="module")
def client(gateway):
    return openai.OpenAI(base_url=gateway.v1, api_key=gateway.key, max_retries=0, timeout=120)


def test_a_wrong_key_is_an_authentication_error(gateway):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=gateway.v1, api_key="wrong", max_retries=0).models.list()


def test_an_answer_goes_back_into_the_history_as_it_came(gateway, client):
    messages = [{"role": "user", "content": "Say hello."}]
    for _ in range(3):
        answer = client.chat.completions.create(model=gateway.text, messages=messages, max_tokens=8)
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "Again."}]
    assert answer.choices[0].message.content


def test_a_forced_tool_is_called_and_its_result_answered(gateway, client):
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    first = client.chat.completions.create(
        model=gateway.text, messages=messages, tools=[TOOL], tool_choice="required", max_tokens=60, temperature=0
    )
    call = first.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    second = client.chat.completions.create(model=gateway.text, messages=messages, tools=[TOOL], max_tokens=16)
    assert second.choices[0].finish_reason in {"stop", "length", "tool_calls"}


def test_parse_makes_an_object_of_a_chat_answer(gateway, client):
    answer = client.chat.completions.parse(
        model=gateway.text,
        messages=[{"role": "user", "content": "Name a city."}],
        response_format=City,
        max_tokens=100,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_a_chat_stream_is_accumulated_by_the_sdk(gateway, client):
    with client.chat.completions.stream(
        model=gateway.text,
        messages=[{"role": "user", "content": "What is the capital of Japan?"}],
        max_tokens=100,
        temperature=0,
        stream_options={"include_usage": True},
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content
    assert final.usage.completion_tokens > 1


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_responses_come_whole_and_are_kept(gateway, client, which):
    model = getattr(gateway, which)
    first = client.responses.create(model=model, input="SAY My name is Tessera.", max_output_tokens=16)
    assert first.output_text
    second = client.responses.create(
        model=model, input="Go on.", previous_response_id=first.id, max_output_tokens=16, metadata={"test": "kept"}
    )
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).metadata == {"test": "kept"}
    items = list(client.responses.input_items.list(second.id))
    assert items
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_the_events_of_a_response_are_the_sdks_types_in_its_order(gateway, client, which):
    adapter = pydantic.TypeAdapter(ResponseStreamEvent)
    stream = client.responses.create(
        model=getattr(gateway, which), input="SAY one two three", stream=True, max_output_tokens=12
    )
    events = list(stream)
    for event in events:
        adapter.validate_python(event.model_dump(warnings=False))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text


def test_the_sdks_stream_helper_parses_a_structured_response(gateway, client):
    with client.responses.stream(
        model=gateway.text, input="Name a city.", text_format=City, max_output_tokens=100, temperature=0
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, City)


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_a_response_calls_a_function_and_takes_its_result(gateway, client, which):
    model = getattr(gateway, which)
    question = 'What is the weather in Rome? CALL weather {"city": "Rome"}'
    first = client.responses.create(
        model=model, input=question, tools=[FLAT_TOOL], tool_choice="required", max_output_tokens=60, temperature=0
    )
    call = next(item for item in first.output if item.type == "function_call")
    assert "city" in json.loads(call.arguments)
    second = client.responses.create(
        model=model,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}],
        tools=[FLAT_TOOL],
        tool_choice="none",
        max_output_tokens=16,
    )
    assert second.output_text


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_the_sdks_stream_helper_follows_a_call(gateway, client, which):
    with client.responses.stream(
        model=getattr(gateway, which),
        input='What is the weather in Rome? CALL weather {"city": "Rome"}',
        tools=[FLAT_TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=60,
        temperature=0,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert set(kinds[3:-3]) == {"response.function_call_arguments.delta"}
    assert events[-4].snapshot == final.output[0].arguments
    assert "city" in json.loads(final.output[0].arguments)


def test_a_background_response_is_a_job_that_is_polled(gateway, client):
    response = client.responses.create(model=gateway.text, input="Say hello.", background=True, max_output_tokens=16)
    assert response.status in {"queued", "in_progress"}
    deadline = time.monotonic() + 60
    while response.status in {"queued", "in_progress"} and time.monotonic() < deadline:
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    assert response.status in {"completed", "incomplete"}
    assert response.output_text


def test_a_completion_streams(gateway, client):
    pieces = list(client.completions.create(model=gateway.text, prompt="One, two,", max_tokens=8, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices)


def test_embeddings_come_as_the_sdk_asks_for_them(gateway, client):
    found = client.embeddings.create(model=gateway.text, input=["one", "two"])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 100


def test_names_of_openai_stand_for_what_is_here(gateway, client):
    listed = {model.id for model in client.models.list()}
    assert {"gpt-4o", "whisper-1", "tts-1", "text-embedding-3-small"} <= listed
    answer = client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
    )
    assert answer.choices[0].message.content
    sound = client.audio.speech.create(model="tts-1", voice="alloy", input="Hello there.", response_format="wav")
    assert sound.content.startswith(b"RIFF")
    heard = client.audio.transcriptions.create(model="whisper-1", file=("hello.wav", sound.content))
    assert isinstance(heard.text, str)
