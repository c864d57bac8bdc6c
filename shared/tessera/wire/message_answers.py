"""Answers of Anthropic's messages, whole and as events; and its list of models and its errors.

Source: Anthropic's API reference, checked against its Python SDK 2.12.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextOutput(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class ThinkingOutput(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought before its answer."""

    thinking: str
    signature: str


class ToolUseOutput(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call that the model makes."""

    id: str
    name: str
    input: dict[str, Any]


OutputBlock = TextOutput | ThinkingOutput | ToolUseOutput


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens. The prompt has `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    """Always 0: nothing is charged for writing to the prefix cache, and every prompt is written to it."""
    cache_read_input_tokens: int = 0


class AppliedEdits(msgspec.Struct, frozen=True):
    """Which edits of the context were made: none of those that would be reported."""

    applied_edits: list[Any] = []


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/messages`, and the beginning of its stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET


class CountedTokens(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event of a stream: the message, with empty content."""

    message: MessageAnswer


class ContentBlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, without its content."""

    index: int
    content_block: OutputBlock


class TextBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """The next piece of a text block."""

    text: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON of a call's input."""

    partial_json: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature, at the end of a thought."""

    signature: str


class ContentBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: TextBlockDelta | InputJsonDelta | ThinkingDelta | SignatureDelta


class ContentBlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The block with this index is complete."""

    index: int


class MessageEnding(msgspec.Struct, frozen=True, kw_only=True):
    """Why the answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    """The answer's end; the numbers of tokens are those of the whole answer."""

    delta: MessageEnding
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event of a stream that did not fail."""


class MessagePing(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """An event without meaning."""


class MessageFault(msgspec.Struct, frozen=True):
    """What went wrong, with one of Anthropic's types."""

    type: str
    message: str


class MessageError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error response, and the last event of a stream that failed."""

    error: MessageFault
    request_id: str | None = None


MessageEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | MessagePing
    | MessageError
)


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model in Anthropic's shape."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    """When the model was released (RFC 3339)."""
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/models` to a client of Anthropic's."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None
