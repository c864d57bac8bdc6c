"""Makes the chat request of a response's request, and refuses by name what no answer here could honour."""

from __future__ import annotations

from typing import Literal

from tessera.errors import InvalidRequestError
from tessera.protocols.responses.conversation import MessageList
from tessera.protocols.responses.items import as_items, read_items
from tessera.protocols.responses.tools import OfferedTools
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.hints import StreamOptions
from tessera.wire.responses.request import AnyJsonFormat, ResponseRequest, SchemaFormat
from tessera.wire.tools import JsonObjectFormat, JsonSchema, JsonSchemaFormat, ResponseFormat

REFUSED = {
    "conversation": "conversations are not kept here; use `previous_response_id`, or send the items",
    "prompt": "templates of prompts are not kept here; send `instructions` and `input`",
    "context_management": "nothing compacts a conversation here; `truncation: auto` leaves out its oldest turns",
    "moderation": "no moderation runs within a response here",
}
"""Parameters that cannot be honoured, each with the reason."""
KEPT = "needs the gateway with Redis: this service keeps no responses"
LOGPROBS = "message.output_text.logprobs"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def refuse_unsupported(body: ResponseRequest) -> None:
    """Refuse what cannot be honoured anywhere.

    Raises:
        InvalidRequestError: names the parameter and what to do.
    """
    for name, reason in REFUSED.items():
        if getattr(body, name):
            raise InvalidRequestError(f"`{name}` is not supported: {reason}", param=name, code="unsupported_parameter")


def refuse_kept(body: ResponseRequest) -> None:
    """Refuse what only a gateway with Redis can do.

    Raises:
        InvalidRequestError: names the parameter.
    """
    for name in ("store", "previous_response_id", "background"):
        if getattr(body, name):
            raise InvalidRequestError(f"`{name}` {KEPT}", param=name, code="unsupported_parameter")


def chat_request(body: ResponseRequest, tools: OfferedTools) -> ChatCompletionRequest:
    """The chat request that answers `body`.

    Raises:
        InvalidRequestError: an item of the input cannot be read; names its place.
    """
    conversation = MessageList(body.instructions)
    for place, item in enumerate(read_items(as_items(body.input))):
        conversation.add(item, f"input[{place}]")
    logprobs = LOGPROBS in (body.include or []) or bool(body.top_logprobs)
    return ChatCompletionRequest(
        model=body.model,
        messages=conversation.end(),
        stream=bool(body.stream),
        stream_options=StreamOptions(include_usage=True) if body.stream else None,
        temperature=body.temperature,
        # The least that chat takes, which leaves one token: the same as 0.
        top_p=1e-6 if body.top_p == 0 else body.top_p,
        max_completion_tokens=body.max_output_tokens,
        tools=tools.chat_tools,
        tool_choice=tools.choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_format=_format(body),
        reasoning_effort=_effort(body),
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        user=body.user,
        seed=body.seed,
        top_k=body.top_k,
        min_p=body.min_p or 0.0,
        typical_p=1.0 if body.typical_p is None else body.typical_p,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        ignore_eos=bool(body.ignore_eos),
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        deadline_s=body.deadline_s,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _format(body: ResponseRequest) -> ResponseFormat | None:
    chosen = None if body.text is None else body.text.format
    if isinstance(chosen, SchemaFormat):
        schema = JsonSchema(name=chosen.name, schema=chosen.schema, description=chosen.description)
        return JsonSchemaFormat(schema)
    return JsonObjectFormat() if isinstance(chosen, AnyJsonFormat) else None


def _effort(body: ResponseRequest) -> Effort | None:
    chosen = None if body.reasoning is None else body.reasoning.effort
    return "xhigh" if chosen == "max" else chosen
