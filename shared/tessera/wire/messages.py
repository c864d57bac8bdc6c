"""Requests of Anthropic's messages: what `POST /v1/messages` and `/v1/messages/count_tokens` take.

Request types refuse unknown fields. Fields whose comment says "hint" are accepted and change no answer here. Source:
Anthropic's API reference, checked against its Python SDK 2.12 and against requests of Claude Code 2.1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.wire.chat import Request, Stop
from tessera.wire.tools import FunctionName

Hint = Any
"""A value that is accepted whatever it is, and without effect."""


class Base64Source(msgspec.Struct, frozen=True, tag_field="type", tag="base64", forbid_unknown_fields=True):
    """A file's bytes in base64."""

    media_type: Annotated[str, Meta(pattern=r"^[\w.+-]+/[\w.+-]+$", max_length=128)]
    data: str


class UrlSource(msgspec.Struct, frozen=True, tag_field="type", tag="url", forbid_unknown_fields=True):
    """A remote file. Refused: remote addresses are not fetched."""

    url: str


class FileSource(msgspec.Struct, frozen=True, tag_field="type", tag="file", forbid_unknown_fields=True):
    """A file that was uploaded before. Refused: there is no store of files here."""

    file_id: str


class PlainTextSource(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A document that is plain text, which is given in the request itself."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class CitationsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the answer should cite a document. Only False is possible here."""

    enabled: bool | None = None


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A part of a turn, or of a system prompt, that is text."""

    text: str
    cache_control: Hint = None  # hint: prefixes are always cached
    citations: Hint = None  # hint: of an earlier answer


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image", forbid_unknown_fields=True):
    """An image in a user's turn or in the result of a call."""

    source: Base64Source | UrlSource | FileSource
    cache_control: Hint = None


class ContentSource(msgspec.Struct, frozen=True, tag_field="type", tag="content", forbid_unknown_fields=True):
    """A document as blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(msgspec.Struct, frozen=True, tag_field="type", tag="document", forbid_unknown_fields=True):
    """A document, which the model reads as text and images."""

    source: Base64Source | PlainTextSource | ContentSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    """What the document is; read by the model before the document."""
    citations: CitationsConfig | None = None
    cache_control: Hint = None


class SearchResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="search_result", forbid_unknown_fields=True):
    """A result of a search that the client made."""

    source: str
    title: str
    content: list[TextBlock]
    citations: CitationsConfig | None = None
    cache_control: Hint = None


class ToolReferenceBlock(
    msgspec.Struct, frozen=True, tag_field="type", tag="tool_reference", forbid_unknown_fields=True
):
    """A tool that a search among deferred tools has found."""

    tool_name: str
    cache_control: Hint = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """The assistant's thought. Its signature is not checked: a thought is as much the client's word as any text."""

    thinking: str
    signature: str | None = None
    cache_control: Hint = None


class RedactedThinkingBlock(
    msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking", forbid_unknown_fields=True
):
    """A thought that only Anthropic's servers can read; left out of the prompt."""

    data: str
    cache_control: Hint = None


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call that the assistant made."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input: dict[str, Any]
    cache_control: Hint = None
    caller: Hint = None  # hint: always the model itself
    toolset_name: None = None


class ToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """The result of a call."""

    tool_use_id: Annotated[str, Meta(min_length=1, max_length=256)]
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None
    cache_control: Hint = None
    toolset_name: None = None


InputBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class MessageTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation. A `system` turn is an instruction in the midst of it."""

    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None  # hint: calls that are enforced always follow the schema
    cache_control: Hint = None
    defer_loading: Hint = None  # hint: every tool is offered at once
    eager_input_streaming: Hint = None  # hint: input is always streamed as it is made
    input_examples: Annotated[list[dict[str, Any]], Meta(max_length=64)] | None = None
    """Inputs that are shown to the model behind the description."""
    allowed_callers: list[Literal["direct"]] | None = None


class AutoToolChoice(msgspec.Struct, frozen=True, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """The model decides whether it calls tools, and which."""

    disable_parallel_tool_use: bool | None = None


class AnyToolChoice(msgspec.Struct, frozen=True, tag_field="type", tag="any", forbid_unknown_fields=True):
    """One of the tools has to be called."""

    disable_parallel_tool_use: bool | None = None


class NamedToolChoice(msgspec.Struct, frozen=True, tag_field="type", tag="tool", forbid_unknown_fields=True):
    """This tool has to be called."""

    name: FunctionName
    disable_parallel_tool_use: bool | None = None


class NoToolChoice(msgspec.Struct, frozen=True, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool may be called."""


ThoughtDisplay = Literal["summarized", "omitted"]


class ThinkingEnabled(msgspec.Struct, frozen=True, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    """The model thinks first. The budget chooses an effort; it is no exact bound."""

    budget_tokens: Annotated[int, Meta(ge=1)]
    display: ThoughtDisplay | None = None


class ThinkingAdaptive(msgspec.Struct, frozen=True, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """The model decides how much it thinks."""

    display: ThoughtDisplay | None = None


class ThinkingBetweenTools(
    msgspec.Struct, frozen=True, tag_field="type", tag="between_tools", forbid_unknown_fields=True
):
    """The model may think between calls; read as `adaptive`."""


class ThinkingDisabled(msgspec.Struct, frozen=True, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The model does not think, if it can be told so."""


class JsonOutput(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer is JSON that satisfies a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the answer is made."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """How much the model thinks, where the model's template can say it."""
    format: JsonOutput | None = None
    task_budget: Hint = None  # hint: a budget that the model is told of


class ThinkingTurns(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_turns", forbid_unknown_fields=True):
    """The last turns of the assistant."""

    value: Annotated[int, Meta(ge=1)]


class AllThinkingTurns(msgspec.Struct, frozen=True, tag_field="type", tag="all", forbid_unknown_fields=True):
    """All turns of the assistant."""


class ClearThinking(
    msgspec.Struct, frozen=True, tag_field="type", tag="clear_thinking_20251015", forbid_unknown_fields=True
):
    """Thoughts of older turns are left out of the prompt."""

    keep: ThinkingTurns | AllThinkingTurns | Literal["all"] | None = None


class ClearToolUses(msgspec.Struct, frozen=True, tag_field="type", tag="clear_tool_uses_20250919"):
    """Results of older calls may be left out of a long prompt. A hint: nothing is left out here, and a prompt that does
    not fit is refused."""


class ContextManagement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be left out of the prompt."""

    edits: list[ClearThinking | ClearToolUses] = []


class MessageMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who the request is for."""

    user_id: str | None = None  # hint: not passed on


class MessagesInput(Request, frozen=True, kw_only=True):
    """What makes the prompt: the part of a request whose tokens can be counted."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[MessageTurn], Meta(min_length=1, max_length=2048)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=512)] | None = None
    """Each a `ClientTool`; server tools are refused by their names."""
    tool_choice: AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutput | None = None
    """The older name of `output_config.format`."""
    context_management: ContextManagement | None = None
    mcp_servers: list[Any] | None = None
    """Only an empty list: this server calls no other servers."""
    cache_control: Hint = None  # hint
    speed: Hint = None  # hint
    betas: Hint = None  # hint: what is implemented is on


class CountTokensRequest(MessagesInput, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`."""


class MessagesRequest(MessagesInput, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None  # hint
    container: Any = None
    """Refused: nothing is run here."""
    inference_geo: Any = None
    """Refused: this server cannot choose where it is."""
    diagnostics: Hint = None  # hint
