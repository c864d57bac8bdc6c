"""Tools that a response may call. All of them are run by the client; a server that runs tools itself is another one.

Hints (`strict`, `defer_loading`, …) are accepted and without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.wire.tools import MOST_SOURCE, FunctionName


class OfferedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: FunctionName
    type: Literal["function"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None
    async_: bool | None = msgspec.field(name="async", default=None)


class AnyText(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A custom tool takes any text."""


class TextGrammar(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="grammar", forbid_unknown_fields=True
):
    """A custom tool takes a text of a grammar, which the model is shown but not held to."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(max_length=MOST_SOURCE)]


class OfferedCustomTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that takes a text in place of JSON. The model is offered a function with one string."""

    name: FunctionName
    type: Literal["custom"] = "custom"
    description: str | None = None
    format: AnyText | TextGrammar | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    async_: bool | None = msgspec.field(name="async", default=None)


class OfferedNamespace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools under a common name."""

    name: FunctionName
    tools: list[dict[str, Any]]
    type: Literal["namespace"] = "namespace"
    description: str | None = None


class OfferedClientTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client whose parameters OpenAI has fixed."""

    type: Literal["local_shell", "shell", "apply_patch"]
    environment: dict[str, Any] | None = None
    allowed_callers: list[str] | None = None


class ChosenTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one tool that has to be called."""

    type: str
    name: str | None = None
    namespace: str | None = None


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tools of the request that may be called this time."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]
    type: Literal["allowed_tools"] = "allowed_tools"
