"""Decoding bodies into wire types, with errors that name the field.

Knows no limits of a service.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.tolerance import relaxed

T = TypeVar("T")

DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that are not JSON, also for text that is not UTF-8 and for too deep nesting."""

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]+)`")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body. What changes no answer is not refused (`wire/tolerance`).

    Raises:
        InvalidRequestError: the body is not JSON, lacks a field, or has one that is unknown or of a wrong type;
            `param` is the field's path.
    """
    try:
        return _decoded(body, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from error
    except DAMAGED as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if (less := relaxed(body, kind, str(error))) is None:
            raise
    return msgspec.json.decode(less, type=kind)


def convert_form(fields: dict[str, Any], kind: type[T]) -> T:
    """Convert the fields of a form, where every value is a string, into `kind`. Raises as `decode_json` does."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from error


def convert_json(value: Any, kind: type[T], *, at: str) -> T:
    """Convert a decoded JSON value that stands in a body at the path `at`. Raises as `decode_json` does."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind, at) from error


def _explain(message: str, kind: type[Any], at: str = "") -> InvalidRequestError:
    found = _PATH.search(message)
    place = found["path"] if found else ""
    if at:
        place = f"{at}{place}" if place.startswith("[") or not place else f"{at}.{place}"
    reason = message[: found.start()] if found else message
    if unknown := _UNKNOWN.search(reason):
        param = f"{place}.{unknown['field']}" if place else unknown["field"]
        text = f"`{param}` is not a parameter of this request"
        if not place and hasattr(kind, "__struct_fields__"):
            text += "; known are " + ", ".join(kind.__struct_encode_fields__)
        return InvalidRequestError(text, param=param, code="unknown_parameter")
    if missing := _MISSING.search(reason):
        param = f"{place}.{missing['field']}" if place else missing["field"]
        return InvalidRequestError(f"`{param}` is required", param=param, code="missing_required_parameter")
    param = place or None
    return InvalidRequestError(f"`{place}`: {reason}" if place else reason, param=param)
