"""The response object, and what the routes of kept responses answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tessera.wire.responses.items import OutputItem
from tessera.wire.responses.request import Metadata, ReasoningOptions

GenerationStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
"""Status of a response."""
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class GenerationFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: FailureCode
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the input's tokens."""

    cached_tokens: int = 0
    """Tokens that the prefix cache had."""
    cache_write_tokens: int = 0
    """Tokens whose storage is charged: none."""


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the output's tokens."""

    reasoning_tokens: int = 0
    """Tokens of the thought; 0 where the upstream does not count them."""


class GenerationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ShownText(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text as the answer shows it."""

    format: Any
    verbosity: Literal["low", "medium", "high"] | None = None


class GeneratedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response. `Response` is OpenAI's name for it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: GenerationStatus
    completed_at: int | None = None
    background: bool = False
    error: GenerationFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = False
    temperature: float | None = None
    text: ShownText
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    """The tools that the model was offered."""
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: GenerationUsage | None = None
    user: str | UnsetType | None = UNSET
    metadata: Metadata = {}


class InputTokens(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/responses/input_tokens`."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseItemList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/responses/{id}/input_items`."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
