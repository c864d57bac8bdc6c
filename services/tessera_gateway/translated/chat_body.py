"""A chat request as the body for an upstream of any make: only what the request says, because other servers refuse, or
read in their own way, fields that they do not have. Knows no protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.wire.chat import ChatCompletionRequest

_DEFAULTS = {field.encode_name: field.default for field in msgspec.structs.fields(ChatCompletionRequest)}


def chat_body(chat: ChatCompletionRequest, model: str) -> bytes:
    """The body of a chat request.

    Args:
        chat: the request.
        model: the name by which the upstream knows the model.
    """
    return msgspec.json.encode(_fields(chat, model))


def completion_body(chat: ChatCompletionRequest, model: str) -> bytes:
    """The body of a completion whose prompt is the text of the only message, without a template."""
    fields = _fields(chat, model)
    (message,) = fields.pop("messages")
    return msgspec.json.encode(fields | {"prompt": message["content"]})


def _fields(chat: ChatCompletionRequest, model: str) -> dict[str, Any]:
    given = {
        name: value
        for name in chat.__struct_fields__
        if (value := getattr(chat, name)) is not None and value != _DEFAULTS[name]
    }
    fields: dict[str, Any] = msgspec.to_builtins(given) | {"model": model}
    fields["messages"] = [_without_nulls(message) for message in fields["messages"]]
    for tool in fields.get("tools", []):
        tool["function"] = _without_nulls(tool["function"])
    if "response_format" in fields:
        form = fields["response_format"]
        if "json_schema" in form:
            form["json_schema"] = _without_nulls(form["json_schema"])
    return fields


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Without fields of our types that say nothing. What is inside a schema stays as it is."""
    return {name: value for name, value in fields.items() if value is not None}
