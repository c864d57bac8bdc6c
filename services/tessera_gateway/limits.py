"""Reads bodies under their limits and decodes the one field that routing needs: the model.

A body is read under its route's limit (Litestar's `request_max_body_size`, set in `app`), decoded only as far as the
model's name, and passed on unchanged. The service that answers the request checks everything else in it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request
from msgspec import Meta

from tessera.errors import InvalidRequestError, UnsupportedMediaError
from tessera.web.bodies.spool import PARSE_INLINE_BYTES, SpooledForm, SpoolPlace, spool_form
from tessera.wire.decoding import convert_form, decode_json
from tessera_gateway.renaming import model_span, renamed_form, renamed_json


class Routed(msgspec.Struct, frozen=True):
    """The part of a body that routing reads."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    prompt_cache_key: str | None = None


class MaybeRouted(msgspec.Struct, frozen=True):
    """The same of a body that may name no model."""

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None


class Body(msgspec.Struct, frozen=True):
    """A body as it arrived, and the model that it is for."""

    model: str
    data: bytes | SpooledForm
    """The bytes, or the form that has them in a file."""
    content_type: str
    cache_key: str = ""
    """The request's `prompt_cache_key`; empty if it has none."""


class JsonBody(Body, frozen=True):
    """A JSON body as it arrived, and the model that it is for."""

    data: bytes


async def read_json(request: Request[Any, Any, Any], *, default: str | None = None) -> JsonBody:
    """The body of a JSON route.

    Args:
        request: the client's request.
        default: the model of a body that names none; without one such a body is refused.

    Raises:
        UnsupportedMediaError: the content type is not JSON. (A browser sends JSON to another origin only after a
            preflight request, so this also keeps foreign web pages from using a gateway without keys.)
        InvalidRequestError: the body is not JSON, or names no model.
        PayloadTooLargeError: the body is over the route's limit.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        given = content_type or "(none)"
        raise UnsupportedMediaError(f"content-type {given!r} is not supported here; send application/json")
    data = await request.body()
    if default is not None:
        return JsonBody(decode_json(data, MaybeRouted).model or default, data, content_type)
    routed = decode_json(data, Routed)
    return JsonBody(routed.model, data, content_type, routed.prompt_cache_key or "")


async def renamed(body: Body, model: str) -> Body:
    """The body, for another model."""
    data = body.data
    if isinstance(data, SpooledForm):
        await data.replace(lambda view: model_span(view, body.content_type), model.encode())
        return Body(model, data, body.content_type)
    if not body.content_type.lower().startswith("multipart/"):
        return Body(model, renamed_json(data, model), body.content_type, body.cache_key)
    if len(data) > PARSE_INLINE_BYTES:
        return Body(model, await asyncio.to_thread(renamed_form, data, body.content_type, model), body.content_type)
    return Body(model, renamed_form(data, body.content_type, model), body.content_type)


async def read_multipart(
    request: Request[Any, Any, Any], most_bytes: int, place: SpoolPlace
) -> tuple[Body, SpooledForm]:
    """The body of a multipart form, in memory or in a file, and the form with its text fields.

    Raises:
        UnsupportedMediaError: the content type is not a multipart form.
        InvalidRequestError: the form is damaged, or names no model.
        PayloadTooLargeError: the body is over `most_bytes`.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        given = content_type or "(none)"
        raise UnsupportedMediaError(f"content-type {given!r} is not supported here; send multipart/form-data")
    form = await spool_form(request, most_bytes, place)
    if "model" in form.files:
        raise InvalidRequestError("`model` is a name, not a file", param="model")
    data = form.in_memory
    return Body(convert_form(form.fields, Routed).model, form if data is None else data, content_type), form
