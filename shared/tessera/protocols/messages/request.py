"""A request of Anthropic's messages as a chat request. What cannot be done here is refused by its name, with what to do
instead. Does not know answers.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.protocols.messages.turns import chat_messages, system_text
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import Message
from tessera.wire.decoding import DAMAGED, decode_json
from tessera.wire.hints import StreamOptions
from tessera.wire.messages import (
    AnyToolChoice,
    AutoToolChoice,
    ClearThinking,
    ClientTool,
    MessagesInput,
    MessagesRequest,
    NamedToolChoice,
    NoToolChoice,
    ThinkingDisabled,
    ThinkingEnabled,
    ThinkingTurns,
)
from tessera.wire.tools import (
    Function,
    FunctionChoice,
    JsonSchema,
    JsonSchemaFormat,
    Tool,
    ToolChoice,
)

SEARCH_TOOLS = ("tool_search_tool_regex_", "tool_search_tool_bm25_")
"""Beginnings of the types of tools that find deferred tools. They are accepted without effect, because every tool is
offered at once."""
LOW_BUDGET, MEDIUM_BUDGET = 4096, 16384
"""Most tokens of a budget that asks for low and for medium effort, the steps in which clients that offer both count."""


def chat_request(request: MessagesInput) -> ChatCompletionRequest:
    """The chat request for a message, or for the prompt whose tokens are counted.

    Raises:
        InvalidRequestError: the request asks for what cannot be done here; names it.
    """
    _refuse_unavailable(request)
    tools = _tools(request.tools or [])
    messages, form = _messages(request), _format(request)
    goes_on = bool(messages) and messages[-1].role == "assistant"
    if goes_on:
        _check_beginning(messages[-1], form)
    chat = ChatCompletionRequest(
        model=request.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_choice(request) if tools else None,
        parallel_tool_calls=_parallel(request),
        reasoning_effort=_effort(request),
        response_format=form,
        continue_final_message=goes_on,
        add_generation_prompt=False if goes_on else None,
    )
    if not isinstance(request, MessagesRequest):
        return chat
    return msgspec.structs.replace(
        chat,
        max_tokens=request.max_tokens,
        stream=bool(request.stream),
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        stop=request.stop_sequences or None,
        # Nothing but the likeliest token is left of a share of 0.
        temperature=0.0 if request.top_p == 0 else request.temperature,
        top_p=request.top_p or None,
        top_k=request.top_k,
    )


def _refuse_unavailable(request: MessagesInput) -> None:
    if request.mcp_servers:
        raise InvalidRequestError(
            "`mcp_servers`: this server calls no other servers; run their tools in the client", param="mcp_servers"
        )
    if not isinstance(request, MessagesRequest):
        return
    if request.container is not None:
        raise InvalidRequestError("`container`: nothing is run here; leave it out", param="container")
    if request.inference_geo is not None:
        raise InvalidRequestError(
            "`inference_geo`: this server cannot choose where it runs; leave it out", param="inference_geo"
        )


def _messages(request: MessagesInput) -> list[Message]:
    keep: int | None = None
    for edit in request.context_management.edits if request.context_management else []:
        if isinstance(edit, ClearThinking) and isinstance(edit.keep, ThinkingTurns):
            keep = edit.keep.value
    system = system_text(request.system)
    head = [] if system is None else [Message(role="system", content=system)]
    return [*head, *chat_messages(request.messages, keep_thoughts=keep)]


def _check_beginning(last: Message, form: JsonSchemaFormat | None) -> None:
    """Refuse a last turn of the assistant that an answer cannot go on with, as Anthropic does."""
    reason = None
    if last.tool_calls:
        reason = "end with a call; give its result in a user's turn"
    elif not last.content:
        reason = "end with a turn of the assistant that has no text to go on with; give some, or end with a user's turn"
    elif isinstance(last.content, str) and last.content[-1].isspace():
        reason = "end with a turn of the assistant whose text ends with whitespace; leave that out"
    elif form is not None:
        reason = "end with the assistant's turn, which cannot go on in the format of `output_config`; give one of them"
    if reason is not None:
        raise InvalidRequestError(f"`messages` {reason}", param="messages")


def _tools(given: list[dict[str, Any]]) -> list[Tool]:
    tools = []
    for place, entry in enumerate(given):
        kind = entry.get("type")
        if isinstance(kind, str) and kind.startswith(SEARCH_TOOLS):
            continue
        if kind not in (None, "custom"):
            raise InvalidRequestError(
                f"`tools[{place}].type`: {str(kind)[:64]!r} is a tool of Anthropic's servers, which is not here; give "
                f"a tool of your own with `input_schema`",
                param=f"tools[{place}].type",
            )
        tool = _client_tool(entry, place)
        description = tool.description
        if tool.input_examples:
            examples = "\n".join(json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
            description = f"{description or ''}\nExamples of input:\n{examples}".strip()
        tools.append(Tool(function=Function(name=tool.name, description=description, parameters=tool.input_schema)))
    return tools


def _client_tool(entry: dict[str, Any], place: int) -> ClientTool:
    try:
        return decode_json(msgspec.json.encode(entry), ClientTool)
    except InvalidRequestError as error:
        param = f"tools[{place}].{error.param}" if error.param else f"tools[{place}]"
        text = f"`tools[{place}]`: {error.message}"
        raise InvalidRequestError(text, param=param, code=error.own_code) from error
    except DAMAGED as error:  # an integer that no JSON of msgspec's holds
        raise InvalidRequestError(f"`tools[{place}]` cannot be read: {error}", param=f"tools[{place}]") from error


def _choice(request: MessagesInput) -> Any:
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice):
        return ToolChoice(function=FunctionChoice(choice.name))
    if isinstance(choice, AnyToolChoice):
        return "required"
    return "none" if isinstance(choice, NoToolChoice) else None


def _parallel(request: MessagesInput) -> bool:
    choice = request.tool_choice
    named = isinstance(choice, AutoToolChoice | AnyToolChoice | NamedToolChoice)
    return not (named and choice.disable_parallel_tool_use)  # type: ignore[union-attr]


def _effort(request: MessagesInput) -> Any:
    """How much the model should think, as chat says it; None leaves it to the model."""
    if isinstance(request.thinking, ThinkingDisabled):
        return "none"
    asked = request.output_config.effort if request.output_config else None
    if asked is not None:
        return "xhigh" if asked == "max" else asked
    if isinstance(request.thinking, ThinkingEnabled):
        budget = request.thinking.budget_tokens
        return "low" if budget <= LOW_BUDGET else "medium" if budget <= MEDIUM_BUDGET else "high"
    return None


def _format(request: MessagesInput) -> JsonSchemaFormat | None:
    asked = request.output_config.format if request.output_config else None
    if asked is not None and request.output_format is not None:
        raise InvalidRequestError(
            "give `output_config.format` or `output_format`, not both", param="output_config.format"
        )
    wanted = asked or request.output_format
    return JsonSchemaFormat(JsonSchema(name="answer", schema=wanted.schema)) if wanted else None
