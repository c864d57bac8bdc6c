"""Tools, tool calls and structured output, as OpenAI's wire has them; and token routes, as vLLM's has them.

`structured_outputs` is vLLM's extension, with the names that it has had since its version 0.12.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
MOST_SOURCE = 64 * 1024
MOST_PATTERN = 8 * 1024


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """Accepted and without effect: calls that are enforced (`tool_choice`) always follow the schema."""


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that a request offers."""

    function: Function
    type: Literal["function"] = "function"
    strict: bool | None = None
    """As `function.strict`, where some clients write it."""
    cache_control: Any = None
    """A hint of Anthropic's clients, without effect."""


class FunctionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function by its name."""

    name: FunctionName


class AllowedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the tools that may be called."""

    function: FunctionChoice
    type: Literal["function"] = "function"


class ToolSubset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some of the tools of a request: the model is offered these and no others."""

    mode: Literal["auto", "required"]
    """Whether one of them must be called."""
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=128)]

    @property
    def names(self) -> set[str]:
        """Names of the functions."""
        return {tool.function.name for tool in self.tools}


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one tool that has to be called (`type` function), or the tools that may be called (`type` allowed_tools)."""

    function: FunctionChoice | None = None
    allowed_tools: ToolSubset | None = None
    type: Literal["function", "allowed_tools"] = "function"


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a function; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call that the model made."""

    id: str
    function: CalledFunction
    type: Literal["function"] | UnsetType = UNSET
    index: int | None = None
    """Position in a stream; present in histories that were assembled from a stream."""


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a call that a chunk adds."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A call's part of a chunk; id, type and name come once, with the first."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    """Accepted and without effect: answers always follow the schema."""


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """The answer is any text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """The answer is a JSON object."""


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer is JSON that satisfies a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint on the answer's text: exactly one of these fields."""

    json: dict[str, Any] | str | None = None
    """A JSON schema, as an object or as text."""
    regex: Annotated[str, Meta(max_length=MOST_PATTERN)] | None = None
    choice: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(min_length=1, max_length=1024)] | None
    ) = None
    grammar: Annotated[str, Meta(max_length=MOST_SOURCE)] | None = None
    """A grammar in GBNF with a rule `root`."""
    json_object: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /detokenize`."""

    model: str
    tokens: Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=1_048_576)]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /detokenize`."""

    prompt: str


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
