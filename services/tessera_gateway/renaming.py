"""Puts another model's name into a body, and leaves every other value as its bytes are.

A JSON object is taken apart at its outermost level only. Of a form, the bytes of one field are replaced. Knows no
aliases: `upstreams` says which name a body gets.
"""

from __future__ import annotations

import mmap

import msgspec

from tessera.errors import InvalidRequestError
from tessera.web.forms import boundary_of

FIELD = b'name="model"'
"""How a form's field `model` is named in the head of its part."""


def renamed_json(data: bytes, model: str) -> bytes:
    """The JSON object `data`, which has been decoded before, with `model` as its model."""
    values = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    values["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(values)


def renamed_form(data: bytes, content_type: str, model: str) -> bytes:
    """The multipart form `data`, which has been parsed before, with `model` in its field `model`.

    Raises:
        InvalidRequestError: the field is not written as `name="model"`, as every client does.
    """
    start, end = model_span(data, content_type)
    return b"".join([data[:start], model.encode(), data[end:]])


def model_span(data: bytes | mmap.mmap, content_type: str) -> tuple[int, int]:
    """Where the value of the field `model` begins and ends in a form, which has been parsed before.

    Raises:
        InvalidRequestError: the field is not written as `name="model"`, as every client does.
    """
    delimiter = b"\r\n--" + boundary_of(content_type).encode()
    # The first delimiter may have no line break before it.
    start = 0 if data[: len(delimiter) - 2] == delimiter[2:] else data.find(delimiter)
    while start >= 0:
        head_end = data.find(b"\r\n\r\n", start)
        end = data.find(delimiter, start + 1)
        if head_end < 0 or end < 0:
            break
        head = data[start : min(head_end, end)]
        if head_end < end and FIELD in head and b"filename" not in head.lower():
            return head_end + 4, end
        start = end
    raise InvalidRequestError('the form\'s field `model` is not named as `name="model"`', param="model")
