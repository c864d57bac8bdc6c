"""Which envelope the errors of a request have: that of the protocol which its path or its headers belong to."""

from __future__ import annotations

from litestar.types import Scope

from tessera.protocols.messages.errors import messages_shape
from tessera.protocols.ollama.errors import ollama_shape
from tessera.web.errors import ErrorShape, openai_shape

VERSION_HEADER = b"anthropic-version"
"""Clients of Anthropic's send it with every request."""


def shape_of(scope: Scope) -> ErrorShape:
    """The envelope of a request's errors."""
    path = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return messages_shape
    if path.startswith("/v1/models") and any(name == VERSION_HEADER for name, _ in scope["headers"]):
        return messages_shape
    if path.startswith("/api/"):
        return ollama_shape
    return openai_shape
