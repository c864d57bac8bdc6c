"""Agent frameworks in their defaults: a tool is called, its result goes back, and an answer follows."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

ASK = 'What is the weather in Rome? CALL weather {"city": "Rome"}'
RESULT = "Sunny in Rome, says the test."


def test_openai_agents_runs_its_loop_over_responses(gateway):
    import agents
    import openai

    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(
        openai.AsyncOpenAI(base_url=gateway.v1, api_key=gateway.key), use_for_tracing=False
    )
    asked: list[str] = []

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return RESULT

    agent = agents.Agent(name="Test", instructions="Use tools.", model=gateway.scripted, tools=[weather])
    result = agents.Runner.run_sync(agent, ASK)
    assert asked == ["Rome"]
    assert RESULT in result.final_output

    async def streamed() -> list[str]:
        run = agents.Runner.run_streamed(agent, ASK)
        return [event.type async for event in run.stream_events()]

    assert "run_item_stream_event" in asyncio.run(streamed())


def test_openai_agents_answers_with_the_starter(gateway):
    import agents
    import openai

    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(
        openai.AsyncOpenAI(base_url=gateway.v1, api_key=gateway.key), use_for_tracing=False
    )
    agent = agents.Agent(
        name="Test", instructions="Be brief.", model=gateway.text, model_settings=agents.ModelSettings(max_tokens=16)
    )
    assert agents.Runner.run_sync(agent, "Say hello.").final_output


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_pydantic_ai_runs_its_loop(gateway, api):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    model = kind(gateway.scripted, provider=OpenAIProvider(base_url=gateway.v1, api_key=gateway.key))
    agent = pydantic_ai.Agent(model)
    asked: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return RESULT

    result = agent.run_sync(ASK)
    assert asked == ["Rome"]
    assert RESULT in result.output
    again = agent.run_sync("SAY goodbye", message_history=result.all_messages())
    assert again.output == "goodbye"


def test_langchain_calls_tools_and_goes_on(gateway):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return RESULT

    model = ChatOpenAI(base_url=gateway.v1, api_key=gateway.key, model=gateway.scripted)
    bound = model.bind_tools([weather])
    messages: list[Any] = [HumanMessage(ASK)]
    first = bound.invoke(messages)
    assert first.tool_calls[0]["args"] == {"city": "Rome"}
    messages += [
        first,
        ToolMessage(weather.invoke(first.tool_calls[0]["args"]), tool_call_id=first.tool_calls[0]["id"]),
    ]
    assert RESULT in bound.invoke(messages).content
    text = ChatOpenAI(base_url=gateway.v1, api_key=gateway.key, model=gateway.text, max_tokens=8, temperature=0)
    assert "".join(str(piece.content) for piece in text.stream("Say hello."))
    responses = ChatOpenAI(
        base_url=gateway.v1, api_key=gateway.key, model=gateway.text, use_responses_api=True, max_tokens=16
    )
    assert responses.invoke("Say hello.").text
    # Without the flag it sends token ids of OpenAI's tokenizer, which it fetches from another site.
    vectors = OpenAIEmbeddings(
        base_url=gateway.v1, api_key=gateway.key, model=gateway.text, check_embedding_ctx_length=False
    )
    assert len(vectors.embed_query("hello")) > 100


def test_llama_index_chats_and_embeds(gateway):
    from llama_index.core.llms import ChatMessage
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=gateway.text,
        api_base=gateway.v1,
        api_key=gateway.key,
        is_chat_model=True,
        max_tokens=8,
        context_window=2048,
    )
    assert model.chat([ChatMessage(role="user", content="Say hello.")]).message.content
    assert [piece.delta for piece in model.stream_chat([ChatMessage(role="user", content="Say hello.")])]
    vectors = OpenAILikeEmbedding(model_name=gateway.text, api_base=gateway.v1, api_key=gateway.key)
    assert len(vectors.get_text_embedding("hello")) > 100


def test_smolagents_calls_a_tool(gateway):
    import smolagents

    asked: list[str] = []

    class Weather(smolagents.Tool):
        name = "weather"
        description = "The weather of a city."
        inputs: ClassVar = {"city": {"type": "string", "description": "Its name."}}
        output_type = "string"

        def forward(self, city: str) -> str:
            asked.append(city)
            return RESULT

    model = smolagents.OpenAIModel(model_id=gateway.scripted, api_base=gateway.v1, api_key=gateway.key)
    agent = smolagents.ToolCallingAgent(tools=[Weather()], model=model, max_steps=2, verbosity_level=0)
    agent.run(ASK)
    assert asked[0] == "Rome"


def test_litellm_as_a_client_goes_on_after_its_own_messages(gateway, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks another site for prices
    import litellm

    litellm.suppress_debug_info = True
    messages: list[Any] = [{"role": "user", "content": "Say hello."}]
    for _ in range(3):
        answer = litellm.completion(
            model=f"openai/{gateway.text}",
            api_base=gateway.v1,
            api_key=gateway.key,
            messages=messages,
            max_tokens=8,
        )
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "Again."}]
    assert answer.choices[0].message.content
    weather = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    messages = [{"role": "user", "content": ASK}]
    scripted = {"model": f"openai/{gateway.scripted}", "api_base": gateway.v1, "api_key": gateway.key}
    called = litellm.completion(**scripted, messages=messages, tools=[weather]).choices[0].message
    messages += [called, {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT}]
    assert RESULT in litellm.completion(**scripted, messages=messages, tools=[weather]).choices[0].message.content
    # The same over Anthropic's protocol.
    answered = litellm.completion(
        model=f"anthropic/{gateway.text}",
        api_base=gateway.url,
        api_key=gateway.key,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=8,
    )
    assert answered.choices[0].message.content
