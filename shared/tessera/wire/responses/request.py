"""The body of `POST /v1/responses`.

Unknown fields are refused. Items of the input and tools are kept as they arrived, because they are stored and shown
again as they were; `tessera.protocols.responses` reads them as the types of `items` and `tools`. Source: OpenAI's
Python SDK 3.52, and what Codex CLI 0.169, openai-agents 0.24 and the AI SDK 6 send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.wire.chat import Count, Deadline, Priority, Probability, Request, Seed, Temperature

MOST_ITEMS = 4096
"""Most items of one conversation."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""Notes of the client, shown again with the answer."""
Includable = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""What an answer has beside its default. The last five belong to tools that no answer here has."""


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the model thinks, and in which form its thought is shown."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """With a value the thought comes in the form of a summary: the whole thought, because nothing shortens it."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The older name of `summary`."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Accepted and without effect: the model's chat template decides which thoughts it sees again."""
    mode: str | None = None
    """Accepted and without effect."""


class AnyTextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """The answer is any text."""


class AnyJsonFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """The answer is a JSON object."""


class SchemaFormat(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="json_schema",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """The answer is JSON that satisfies a schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """Accepted and without effect: answers always follow the schema."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer's text."""

    format: AnyTextFormat | AnyJsonFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """A hint without effect: no model here has been taught it."""


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Accepted and without effect: no padding is ever added."""


class ResponsePrompt(Request, frozen=True, kw_only=True):
    """What the prompt of a response is made of, and what the answer has to be. An explicit null is the same as a field
    that is left out."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS)] | None = None
    """A text of the user, or the items of the conversation."""
    instructions: str | None = None
    """A system message in front of the input. It is not carried over to a response that follows this one."""
    previous_response_id: str | None = None
    """A kept response whose conversation this one goes on with."""
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """With `auto` the oldest turns are left out of a conversation that is too long for the model. Where tokens are
    counted it has no effect: all are."""
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: str | dict[str, Any] | None = None
    """Refused by name: conversations are not kept."""


class InputTokensRequest(ResponsePrompt, frozen=True, kw_only=True):
    """Body of `POST /v1/responses/input_tokens`."""

    def whole(self) -> ResponseRequest:
        """The request for a response whose prompt is counted."""
        return ResponseRequest(**{name: getattr(self, name) for name in self.__struct_fields__})


class ResponseRequest(ResponsePrompt, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`."""

    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    """Whether the response is kept. Left out, a gateway with Redis keeps it; a service alone keeps nothing."""
    background: bool | None = None
    """Whether the response is made by a job and looked at under its id."""
    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    """Accepted and without effect: it counts calls of tools that the server runs, and there are none."""
    include: list[Includable] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    # hints, which change no answer
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None
    """What Codex says about its session."""
    # beyond OpenAI
    seed: Seed | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    typical_p: Probability | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    deadline_s: Deadline | None = None
    # refused by name, with the reason
    prompt: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    moderation: dict[str, Any] | None = None
