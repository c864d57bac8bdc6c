"""Errors as Ollama has them: one text."""

from __future__ import annotations

import msgspec

from tessera.errors import TesseraError
from tessera.web.errors import ErrorReply, ErrorShape
from tessera.wire.ollama import OllamaFault


def error_line(error: TesseraError) -> bytes:
    """The line that ends a failed stream."""
    return _fault(error) + b"\n"


def _reply(error: TesseraError) -> ErrorReply:
    return ErrorReply(error.status, _fault(error))


def _fault(error: TesseraError) -> bytes:
    return msgspec.json.encode(OllamaFault(error.message))


ollama_shape = ErrorShape(_reply, error_line)
