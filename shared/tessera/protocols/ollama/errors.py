"""Errors as Ollama has them: one text."""

from __future__ import annotations

import msgspec

from tessera.errors import TesseraError
from tessera.web.errors import ErrorReply
from tessera.wire.ollama import OllamaFault


def ollama_shape(error: TesseraError) -> ErrorReply:
    """An error's response."""
    return ErrorReply(error.status, msgspec.json.encode(OllamaFault(error.message)))
