"""The one tree of errors, and the only place that names HTTP statuses.

Every error that a client or an operator can cause is a `TesseraError`. It has an HTTP status, OpenAI's `type` and
`code`, and whether a retry can help; its message says what to do. Any other exception is a fault of ours and becomes a
500 without details. Knows neither HTTP (`tessera.web.errors`) nor processes (an error crosses one as `ErrorBody`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error in OpenAI's wire format."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class TesseraError(Exception):
    """Base of every error that a client or an operator can cause.

    Args:
        message: what is wrong, and what to do about it.
        param: name of the parameter at fault.
        code: code of this error; None takes that of its class.
        retry_after: seconds after which a retry can succeed.
    """

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
        """The error in its wire format."""
        return ErrorBody(message=self.message, type=self.type, param=self.param, code=self.own_code or self.code)


class InvalidRequestError(TesseraError):
    """The request is well-formed HTTP but asks for something impossible."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """The prompt and the requested tokens do not fit in the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(TesseraError):
    """The key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDeniedError(TesseraError):
    """The key is valid but does not permit this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFoundError(TesseraError):
    """The route, job or file does not exist."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFoundError(NotFoundError):
    """No service has a model of this name."""

    code = "model_not_found"


class MethodNotAllowedError(TesseraError):
    """The route exists but does not support the method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeoutError(TesseraError):
    """The body of the request did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"
    retryable = True


class ConflictError(TesseraError):
    """The state of the object does not allow the operation."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class PayloadTooLargeError(TesseraError):
    """The body, or a part of it, exceeds its limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedMediaError(TesseraError):
    """The content type or the media format is not on the allow-list."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media"


class RangeNotSatisfiableError(TesseraError):
    """The requested byte range lies outside the file."""

    status = 416
    type = "invalid_request_error"
    code = "range_not_satisfiable"


class MisdirectedError(TesseraError):
    """The request names a host that this server is not."""

    status = 421
    type = "invalid_request_error"
    code = "misdirected_request"


class UnprocessableError(TesseraError):
    """The request is well-formed but contradicts an earlier one (an idempotency key with another body), or would take
    longer than it waits."""

    status = 422
    type = "invalid_request_error"
    code = "unprocessable"


class OverloadedError(TesseraError):
    """The queue is full; `retry_after` is the number of seconds to wait."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    retryable = True


class RateLimitError(OverloadedError):
    """The key has used up its rate limit."""

    code = "rate_limit_exceeded"


class HeaderTooLargeError(TesseraError):
    """The request line and the headers exceed their limit."""

    status = 431
    type = "invalid_request_error"
    code = "header_too_large"


class ClientClosedError(TesseraError):
    """The client disconnected before its answer began. Only logs and metrics have this status, which is nginx's."""

    status = 499
    type = "invalid_request_error"
    code = "client_closed"


class InternalError(TesseraError):
    """A fault of ours, whose details are in the log under the request id."""

    code = "internal_error"


class NotImplementedHereError(TesseraError):
    """A route of another server's API that this server does not offer; the message says what it has instead. No 5xx,
    because nothing failed: monitors and clients that try again are not told of a fault."""

    status = 403
    type = "invalid_request_error"
    code = "not_implemented"


class BadGatewayError(TesseraError):
    """An upstream sent an invalid answer or closed the connection."""

    status = 502
    code = "upstream_error"
    retryable = True


class UnavailableError(TesseraError):
    """A required part is not available now: an engine that starts, a Redis that is down."""

    status = 503
    code = "unavailable"
    retryable = True


class JobStoreFullError(UnavailableError):
    """The disk of the job store is full: jobs can be read, and no change can be recorded."""

    status = 507
    code = "job_store_full"


class EngineDiedError(UnavailableError):
    """The engine process ended while it computed this request."""

    code = "engine_died"


class DeadlineError(TesseraError):
    """The deadline that the request set has passed."""

    status = 504
    code = "deadline_exceeded"


class GatewayTimeoutError(TesseraError):
    """An upstream did not answer in time."""

    status = 504
    code = "upstream_timeout"
    retryable = True


class StorageFullError(TesseraError):
    """There is no space for the files of a job; the message says where."""

    status = 507
    code = "storage_full"


class SettingsError(TesseraError):
    """A setting is unknown or has a wrong value. Raised at the start, never while serving."""

    code = "invalid_settings"


class StartError(TesseraError):
    """Something that the suite needs to start is missing; the message says how to get it."""

    code = "cannot_start"


class ModelLoadError(StartError):
    """A model directory cannot be loaded: a missing or damaged file, an unsupported architecture."""

    code = "model_not_loaded"


def all_errors() -> list[type[TesseraError]]:
    """Every class of the tree, the base first."""
    found: list[type[TesseraError]] = [TesseraError]
    for error in found:
        found.extend(error.__subclasses__())
    return found


def from_body(body: ErrorBody) -> TesseraError:
    """The error that `body` was made of, to raise an error of another process of ours.

    An unknown code becomes an `InternalError`, so that no status is ever taken from the wire.
    """
    by_code = {(error.code or "", error.type): error for error in all_errors()}
    by_type = {error.type: error for error in reversed(all_errors())}
    error = by_code.get((body.code or "", body.type)) or by_type.get(body.type) or InternalError
    return error(body.message, param=body.param, code=body.code)
