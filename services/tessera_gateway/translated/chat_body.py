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


def completion_body(chat: ChatCompletionRequest, model: str, suffix: str | None) -> bytes:
    """The body of a completion whose prompt is the text of the only message, without a template; `suffix` is what
    comes behind the answer."""
    fields = _fields(chat, model)
    (message,) = fields.pop("messages")
    logprobs, top = fields.pop("logprobs", None), fields.pop("top_logprobs", 0)
    if logprobs:
        fields["logprobs"] = top
    fields.pop("reasoning_effort", None)
    if suffix:
        fields["suffix"] = suffix
    return msgspec.json.encode({"prompt": message["content"], **fields})


def _fields(chat: ChatCompletionRequest, model: str) -> dict[str, Any]:
    given = {
        name: _said(value)
        for name in chat.__struct_fields__
        if (value := getattr(chat, name)) is not None and value != _DEFAULTS[name]
    }
    if "stream_options" in given:
        given["stream_options"] = {name: value for name, value in given["stream_options"].items() if value}
    return given | {"model": model}


def _said(value: Any) -> Any:
    """A value without fields of our types that say nothing. What is inside a schema stays as it is."""
    if isinstance(value, list):
        return [_said(each) for each in value]
    if not isinstance(value, msgspec.Struct):
        return value
    config = value.__struct_config__
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    said = {name: _said(each) for name, each in fields.items() if each is not None and each is not msgspec.UNSET}
    return said if config.tag_field is None else {config.tag_field: config.tag, **said}
