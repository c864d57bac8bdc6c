"""Translates exceptions to error responses: OpenAI's envelope, or that of the protocol which a request is in.

Errors have their own status (`tessera.errors`), so this module does not list them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

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


ErrorShape = Callable[[TesseraError], ErrorReply]
"""How a protocol writes errors."""
ShapeOf = Callable[[Scope], ErrorShape]
"""The protocol of a request, by its path and headers: errors are raised before a handler is found, too."""


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


def openai_shape(error: TesseraError) -> ErrorReply:
    """An error in OpenAI's envelope."""
    return ErrorReply(error.status, envelope(error))


def handler(shape_of: ShapeOf) -> Callable[[Request[Any, Any, Any], Exception], Response[bytes]]:
    """The exception handler of an app: one response for each error, in the envelope of the request's protocol."""

    def handle_in_shape(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        return handle(error, shape_of(request.scope))

    return handle_in_shape


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
    reply = shape(known)
    headers |= reply.headers
    return Response(reply.body, status_code=reply.status, headers=headers, media_type="application/json")
