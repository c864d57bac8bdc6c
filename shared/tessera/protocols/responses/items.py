"""Reads the items of a request's input as types. Knows no chat.

Clients send items back as they got them, so a field with an explicit null is the same as none, and items that the model
made may have fields that are unknown here.
"""

from __future__ import annotations

from typing import Any

from tessera.errors import InvalidRequestError
from tessera.wire.decoding import convert_json
from tessera.wire.responses import items as wire

_TYPES: dict[str, type[wire.ResponseItem]] = {
    "reasoning": wire.ReasoningItem,
    "function_call": wire.FunctionCallItem,
    "function_call_output": wire.FunctionCallOutputItem,
    "custom_tool_call": wire.CustomToolCallItem,
    "custom_tool_call_output": wire.CustomToolCallOutputItem,
    "local_shell_call": wire.LocalShellCallItem,
    "local_shell_call_output": wire.LocalShellCallOutputItem,
    "shell_call": wire.ShellCallItem,
    "shell_call_output": wire.ShellCallOutputItem,
    "apply_patch_call": wire.ApplyPatchCallItem,
    "apply_patch_call_output": wire.ApplyPatchCallOutputItem,
    "item_reference": wire.ItemReference,
}


def type_of(item: dict[str, Any]) -> str:
    """The type of an item; messages and references may leave it out."""
    named = item.get("type")
    if isinstance(named, str):
        return named
    return "message" if "role" in item else "item_reference" if "id" in item else ""


def as_items(given: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """An input as items; a text is one message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given or []


def read_items(given: list[dict[str, Any]], *, at: str = "input") -> list[wire.ResponseItem]:
    """The items of an input.

    Raises:
        InvalidRequestError: an item is of a type that is not known here, or has a wrong field; names its place.
    """
    return [_read(item, f"{at}[{place}]") for place, item in enumerate(given)]


def _read(item: dict[str, Any], at: str) -> wire.ResponseItem:
    named = type_of(item)
    kind: type[wire.ResponseItem] | None
    if named == "message":
        kind = wire.HistoryMessageItem if item.get("role") == "assistant" else wire.InputMessageItem
    else:
        kind = _TYPES.get(named)
    if kind is None:
        known = ", ".join(["message", *_TYPES])
        raise InvalidRequestError(
            f"`{at}.type` is {named or 'missing'}; an item here is one of {known}",
            param=f"{at}.type",
            code="unsupported_value",
        )
    return convert_json({**_without_nulls(item), "type": named}, kind, at=at)


def _without_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}
