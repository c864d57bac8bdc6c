"""How a service serves a protocol natively: around its engine's chat, with the protocol's own events.

Knows no protocol. The service's tools answer chat requests; this room does not import who they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Protocol, TypeAlias

from litestar import Response
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.protocols.translation import Translation, translated
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest
from tessera.web.disconnect import unless_client_leaves
from tessera.web.sse import stream_response
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest


class ChatAnswers(Protocol):
    """Answers chat requests, whole or in chunks."""

    async def answer(self, request: ChatCompletionRequest) -> ChatCompletion:
        """The whole answer."""
        ...

    def chunks(self, request: ChatCompletionRequest) -> AsyncGenerator[ChatCompletionChunk]:
        """The answer as chunks, in order."""
        ...


class AnsweringTools(Protocol):
    """What the routes of a protocol need of the tools of a service's model."""

    @property
    def chat(self) -> ChatAnswers:
        """Answers conversations."""
        ...


AnsweringHost: TypeAlias = EngineHost[AnsweringTools]


async def serve_translated(
    request: HTTPRequest, chat: ChatAnswers, translation: Translation[Any], *, done: bool
) -> Response[Any] | Stream:
    """The answer to a request of a protocol: a stream if the chat request is one.

    Args:
        request: of the client; its body has been read.
        chat: answers it.
        translation: of this request.
        done: whether the protocol's streams end with `[DONE]`.
    """
    if translation.chat.stream:
        events = _events(chat, translation)
        return await unless_client_leaves(request, stream_response(events, done=done, failed=translation.failed))
    completion = await unless_client_leaves(request, chat.answer(translation.chat))
    return json_response(translation.answer(completion))


async def _events(chat: ChatAnswers, translation: Translation[Any]) -> AsyncGenerator[bytes]:
    async with (
        contextlib.aclosing(chat.chunks(translation.chat)) as chunks,
        contextlib.aclosing(translated(translation, chunks)) as events,
    ):
        async for piece in events:
            yield piece
