"""The one tree of errors, and the only place where an HTTP status is written.

Everything a client or an operator can cause is a `TesseraError`: it knows its HTTP status, OpenAI's `type`
and `code`, whether trying again can help, and its message says what to do. What is not a `TesseraError` is a
fault of ours and becomes a 500 without details.

Does not know: HTTP (see `tessera.web.errors`), processes (an error crosses one as `ErrorBody`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as OpenAI's wire has it, plus what only our own processes read."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class TesseraError(Exception):
    """Base of every error that a client or an operator can cause."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.own_code = code
        self.retry_after = retry_after

    def body(self) -> ErrorBody:
        """The error as it goes over the wire."""
        return ErrorBody(message=self.message, type=self.type, param=self.param, code=self.own_code or self.code)


class InvalidRequestError(TesseraError):
    """The request is well-formed HTTP but asks for something that cannot be."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """Prompt and asked-for tokens do not fit the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(TesseraError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDeniedError(TesseraError):
    """The key is right but may not do this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFoundError(TesseraError):
    """No such route, job or file."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFoundError(NotFoundError):
    """No service answers to this model name."""

    code = "model_not_found"


class MethodNotAllowedError(TesseraError):
    """The route exists, the verb does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class ConflictError(TesseraError):
    """The object is not in a state in which this can be done."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class PayloadTooLargeError(TesseraError):
    """The body, or a part of it, is over its limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedMediaError(TesseraError):
    """A content type or a media format that is not on the allow-list."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media"


class RangeNotSatisfiableError(TesseraError):
    """The asked-for byte range lies outside the file."""

    status = 416
    type = "invalid_request_error"
    code = "range_not_satisfiable"


class UnprocessableError(TesseraError):
    """Understood and well-formed, but contradicts what was said before (an idempotency key with another body)."""

    status = 422
    type = "invalid_request_error"
    code = "unprocessable"


class OverloadedError(TesseraError):
    """The queue is full. `retry_after` says when to come back."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    retryable = True


class RateLimitError(OverloadedError):
    """This key has used up its share."""

    code = "rate_limit_exceeded"


class HeaderTooLargeError(TesseraError):
    """Request line and headers are over their limit."""

    status = 431
    type = "invalid_request_error"
    code = "header_too_large"


class ClientClosedError(TesseraError):
    """The client left before its answer began. Nobody reads this; logs and metrics count it (nginx's status)."""

    status = 499
    type = "invalid_request_error"
    code = "client_closed"


class InternalError(TesseraError):
    """A fault of ours; the details are in the log under the request id."""

    code = "internal_error"


class BadGatewayError(TesseraError):
    """An upstream answered with something that is not an answer, or cut the line."""

    status = 502
    code = "upstream_error"
    retryable = True


class UnavailableError(TesseraError):
    """A part that is needed is not there now: a starting engine, a Redis that is down."""

    status = 503
    code = "unavailable"
    retryable = True


class EngineDiedError(UnavailableError):
    """The engine process ended while it worked on this request."""

    code = "engine_died"


class DeadlineError(TesseraError):
    """The deadline that the request itself set is over."""

    status = 504
    code = "deadline_exceeded"


class GatewayTimeoutError(TesseraError):
    """An upstream did not answer in time."""

    status = 504
    code = "upstream_timeout"
    retryable = True


class StorageFullError(TesseraError):
    """No room for a job's files. The message says where."""

    status = 507
    code = "storage_full"


class SettingsError(TesseraError):
    """A setting is unknown or has a wrong value. Raised at start, never while serving."""

    code = "invalid_settings"


class StartError(TesseraError):
    """Something the suite needs to start is missing. The message says how to get it."""

    code = "cannot_start"


class ModelLoadError(StartError):
    """A model directory cannot be loaded: a missing or damaged file, an unsupported architecture."""

    code = "model_not_loaded"


def all_errors() -> list[type[TesseraError]]:
    """Every class of the tree, base first."""
    found: list[type[TesseraError]] = [TesseraError]
    for error in found:
        found.extend(error.__subclasses__())
    return found


def from_body(body: ErrorBody) -> TesseraError:
    """The error that a `body` came from, for passing it on from another process of ours.

    Unknown codes become `InternalError`, so a status is never taken from the wire.
    """
    by_code = {(error.code or "", error.type): error for error in all_errors()}
    by_type = {error.type: error for error in reversed(all_errors())}
    error = by_code.get((body.code or "", body.type)) or by_type.get(body.type) or InternalError
    return error(body.message, param=body.param, code=body.code)
