"""Error responses of upstreams, as errors of ours with the same meaning, to be said in the client's protocol."""

from __future__ import annotations

import msgspec

from tessera.errors import (
    BadGatewayError,
    ConflictError,
    ContextLengthError,
    GatewayTimeoutError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RateLimitError,
    TesseraError,
    UnavailableError,
    UnprocessableError,
    UnsupportedMediaError,
)
from tessera.wire.decoding import DAMAGED
from tessera_gateway.translated.foreign import error_text

_KINDS: dict[int, type[TesseraError]] = {
    400: InvalidRequestError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: PayloadTooLargeError,
    415: UnsupportedMediaError,
    422: UnprocessableError,
    429: OverloadedError,
    503: UnavailableError,
    504: GatewayTimeoutError,
}
_CODES: dict[str, type[TesseraError]] = {
    "context_length_exceeded": ContextLengthError,
    "rate_limit_exceeded": RateLimitError,
}
"""Codes that say more than the status does."""


def failure_of(upstream: str, status: int, body: bytes, retry_after: str | None) -> TesseraError:
    """The error for a response that is none of success.

    Args:
        upstream: name of the server.
        status: of the response.
        body: the beginning of the body; in any form.
        retry_after: the header, in seconds; None without it, and without effect if it is a date.
    """
    try:
        value = msgspec.json.decode(body)
    except DAMAGED:
        value = body[:500].decode(errors="replace").strip() or f"status {status}"
    inner = value.get("error") if isinstance(value, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    param = inner.get("param") if isinstance(inner, dict) else None
    kind = _KINDS.get(status) or (InvalidRequestError if 400 <= status < 500 else BadGatewayError)
    if isinstance(code, str):
        kind = _CODES.get(code, kind) if status < 500 else kind
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    text = error_text(value)
    return kind(
        text if status < 500 else f"the upstream {upstream} failed: {text}",
        param=param if isinstance(param, str) else None,
        retry_after=wait,
    )
