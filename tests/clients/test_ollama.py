"""Ollama's own client."""

from __future__ import annotations

import ollama
import pytest


@pytest.fixture(scope="module")
def client(gateway):
    return ollama.Client(host=gateway.url, headers={"authorization": f"Bearer {gateway.key}"}, timeout=120)


def test_it_lists_shows_and_says_what_runs(gateway, client):
    assert any(model.model.startswith(gateway.text) for model in client.list().models)
    assert client.show(gateway.text).details
    assert client.ps().models


@pytest.mark.parametrize("which", ["text", "scripted"])
def test_it_chats_whole_and_streamed(gateway, client, which):
    model = getattr(gateway, which)
    messages = [{"role": "user", "content": "SAY one two three"}]
    whole = client.chat(model, messages, options={"num_predict": 8, "temperature": 0})
    assert whole.message.content
    assert whole.done
    pieces = list(client.chat(model, messages, stream=True, options={"num_predict": 8, "temperature": 0}))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert pieces[-1].eval_count


def test_it_generates_and_embeds(gateway, client):
    assert client.generate(gateway.text, "Say hello.", options={"num_predict": 8}).response
    assert len(client.embed(gateway.text, ["one", "two"]).embeddings) == 2


def test_it_calls_tools(gateway, client):
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return city

    messages = [{"role": "user", "content": 'CALL weather {"city": "Rome"}'}]
    answer = client.chat(gateway.scripted, messages, tools=[weather])
    assert answer.message.tool_calls[0].function.arguments == {"city": "Rome"}


def test_a_missing_model_is_a_response_error(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("no-such-model", [{"role": "user", "content": "Hello"}])
    assert refused.value.status_code == 404
