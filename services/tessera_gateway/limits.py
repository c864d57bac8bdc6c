"""Limits before work, and the little of a body that routing needs: its model.

Bodies are read under their route's byte limit (Litestar's `request_max_body_size`, set in `app`), decoded only as far
as the model's name, and passed on as they came. What else is in a body is for the service that answers it to judge.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request
from msgspec import Meta

from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera.web.forms import Form, parse_multipart
from tessera.web.uploads import read_to_memory
from tessera.wire.decoding import convert_form, decode_json

PARSE_INLINE_BYTES = 256 * 1024
"""Larger forms are parsed in a thread, so that they do not hold up other requests' streams."""


class Routed(msgspec.Struct, frozen=True):
    """The part of a body that routing reads."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]


class Body(msgspec.Struct, frozen=True):
    """A body as it came, and whom it is for."""

    model: str
    data: bytes
    content_type: str


async def read_json(request: Request[Any, Any, Any]) -> Body:
    """The body of a JSON route.

    Raises:
        UnsupportedMediaError: another content type. (A browser sends JSON to another origin only after asking it, so
            this also keeps foreign web pages from using a gateway without keys.)
        InvalidRequestError: not JSON, or without a model.
        PayloadTooLargeError: over the route's limit.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        given = content_type or "(none)"
        raise UnsupportedMediaError(f"content-type {given!r} is not supported here; send application/json")
    data = await request.body()
    return Body(decode_json(data, Routed).model, data, content_type)


async def read_multipart(request: Request[Any, Any, Any], most_bytes: int) -> tuple[Body, Form]:
    """The body of a form with a file, and what is in it.

    Raises:
        UnsupportedMediaError: another content type.
        InvalidRequestError: a damaged form, or one without a model.
        PayloadTooLargeError: over `most_bytes`.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        given = content_type or "(none)"
        raise UnsupportedMediaError(f"content-type {given!r} is not supported here; send multipart/form-data")
    data = await read_to_memory(request, most_bytes)
    if len(data) > PARSE_INLINE_BYTES:
        form = await asyncio.to_thread(parse_multipart, data, content_type)
    else:
        form = parse_multipart(data, content_type)
    if "model" in form.files:
        raise InvalidRequestError("`model` is a name, not a file", param="model")
    return Body(convert_form(form.fields, Routed).model, data, content_type), form
