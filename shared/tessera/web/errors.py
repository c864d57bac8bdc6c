"""Translates exceptions to error responses: OpenAI's envelope, or that of the protocol which a request is in.

The protocol is chosen once: an app's first layer notes its `ShapeOf` in the scope (`note_shape`), and whatever answers
an error of that request, before a route is found or within a stream, asks `shape_in`.

Errors have their own status (`tessera.errors`), so this module does not list them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
)
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE
from litestar.types import Scope

from tessera.errors import (
    ClientClosedError,
    ErrorBody,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    TesseraError,
)
from tessera.web.disconnect import ClientLeftError

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left before its response; only logs and metrics show it."""

LEFT_EARLY = "client disconnected prematurely"
"""Litestar's message for a client that leaves while its body is read."""


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every error response: `{"error": {…}}`."""

    error: ErrorBody


class ErrorReply(msgspec.Struct, frozen=True):
    """An error as one protocol has it."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    """Headers beside those that every error has."""


class ErrorShape(msgspec.Struct, frozen=True):
    """How a protocol writes errors."""

    reply: Callable[[TesseraError], ErrorReply]
    """An error as a response."""
    event: Callable[[TesseraError], bytes]
    """An error as the last event of a stream that failed after it had begun."""


ShapeOf = Callable[[Scope], ErrorShape]
"""The protocol of a request, by its path and headers: errors are raised before a handler is found, too."""
_KEY = "tessera.error_shape"


def envelope(error: TesseraError) -> bytes:
    """The JSON of an error, for a response body or a stream event."""
    return msgspec.json.encode(ErrorEnvelope(error.body()))


def translate(error: Exception) -> TesseraError:
    """Any exception as a `TesseraError`. An unknown one becomes an `InternalError` without details."""
    if isinstance(error, TesseraError):
        return error
    if isinstance(error, NotFoundException):
        return NotFoundError("there is no such route; the API is described at /docs")
    if isinstance(error, MethodNotAllowedException):
        return MethodNotAllowedError(str(error.detail))
    if isinstance(error, InternalServerException) and error.detail == LEFT_EARLY:
        return ClientClosedError("the client closed the connection before its request was complete")
    if isinstance(error, HTTPException):
        if error.status_code == HTTP_413_REQUEST_ENTITY_TOO_LARGE:
            return PayloadTooLargeError("the request body is larger than this route allows")
        if error.status_code < 500:
            return _invalid(error)
    return InternalError("an internal error; the server's log has it under this request id")


def _invalid(error: HTTPException) -> InvalidRequestError:
    """The error of Litestar's own validation, which names the wrong query parameter and the reason in `extra`."""
    wrong = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    if isinstance(wrong, dict) and "key" in wrong:
        return InvalidRequestError(f"`{wrong['key']}`: {wrong.get('message', error.detail)}", param=str(wrong["key"]))
    return InvalidRequestError(str(error.detail))


def _openai_reply(error: TesseraError) -> ErrorReply:
    return ErrorReply(error.status, envelope(error))


def _openai_event(error: TesseraError) -> bytes:
    return b"data: " + envelope(error) + b"\n\n"


openai_shape = ErrorShape(_openai_reply, _openai_event)


def note_shape(scope: Scope, shape_of: ShapeOf) -> None:
    """Say how the errors of a request are written. Nothing is chosen until there is an error."""
    scope[_KEY] = shape_of  # type: ignore[literal-required]


def shape_in(scope: Scope) -> ErrorShape:
    """How the errors of a request are written: as OpenAI does if no app has said it."""
    shape_of = cast("ShapeOf | None", scope.get(_KEY))
    return openai_shape if shape_of is None else shape_of(scope)


def handle_in_shape(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The exception handler of every app: one response for each error, in the envelope of the request's protocol."""
    return handle(error, shape_in(request.scope))


def handle(error: Exception, shape: ErrorShape) -> Response[bytes]:
    """The response for an error."""
    known = translate(error)
    if isinstance(error, ClientLeftError):
        return Response(b"", status_code=CLIENT_CLOSED_REQUEST)
    if known.status >= 500:
        logger.error("request failed: %s", error, exc_info=error if isinstance(known, InternalError) else None)
    headers = {"x-should-retry": "true" if known.retryable else "false"}
    if known.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(known.retry_after)))
        headers["retry-after-ms"] = str(math.ceil(known.retry_after * 1000))
    if known.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowedException):
        allowed = {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow", "")
        headers["allow"] = ", ".join(sorted(filter(None, (word.strip() for word in allowed.split(",")))))
    reply = shape.reply(known)
    headers |= reply.headers
    return Response(reply.body, status_code=reply.status, headers=headers, media_type="application/json")
