"""Errors in Anthropic's envelope, with its types and statuses. Knows no route."""

from __future__ import annotations

import msgspec

from tessera.errors import OverloadedError, RateLimitError, TesseraError
from tessera.telemetry import request_id_var
from tessera.web.errors import ErrorReply, ErrorShape
from tessera.web.sse import event
from tessera.wire.message_answers import MessageError, MessageFault

OVERLOADED = 529
"""Anthropic's status for a server with too much to do; 429 means a limit of the key alone."""
REQUEST_ID_HEADER = "request-id"
"""The header by which Anthropic's clients name a request."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""Types by status; any other below 500 is `invalid_request_error`, and any other above it `api_error`."""


def status_of(error: TesseraError) -> int:
    """The HTTP status that Anthropic has for an error."""
    if isinstance(error, OverloadedError) and not isinstance(error, RateLimitError):
        return OVERLOADED
    return error.status


def error_type(status: int) -> str:
    """Anthropic's type of an error with this status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def message_error(error: TesseraError) -> MessageError:
    """The body of an error's response, and the data of the event that ends a failed stream."""
    fault = MessageFault(error_type(status_of(error)), error.message)
    return MessageError(fault, request_id_var.get() or None)


def error_event(error: TesseraError) -> bytes:
    """The event that ends a failed stream."""
    return event(message_error(error), "error")


def _reply(error: TesseraError) -> ErrorReply:
    return ErrorReply(status_of(error), msgspec.json.encode(message_error(error)), request_id_header())


def request_id_header() -> dict[str, str]:
    """The header with the current request's id."""
    identity = request_id_var.get()
    return {REQUEST_ID_HEADER: identity} if identity else {}


messages_shape = ErrorShape(_reply, error_event)
