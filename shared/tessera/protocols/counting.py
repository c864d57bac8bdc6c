"""Counting the tokens of a conversation: by a service that renders its prompt, or by a chat request to any other
server, which generates one token and says how many the prompt had. Knows no protocol: its routes pass what they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec
from litestar import Response

from tessera.engine.host import EngineHost
from tessera.errors import BadGatewayError, TesseraError
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest
from tessera.web.disconnect import unless_client_leaves
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest

CountedT = TypeVar("CountedT")


class PromptCounts(Protocol):
    """Counts the tokens of prompts."""

    async def count(self, request: ChatCompletionRequest) -> int:
        """Number of tokens of a request's prompt."""
        ...


class CountingTools(Protocol):
    """What counting needs of the tools of a service's model."""

    @property
    def tokens(self) -> PromptCounts:
        """What counts the tokens of prompts."""
        ...


CountingHost: TypeAlias = EngineHost[CountingTools]


async def count_prompt(
    request: HTTPRequest,
    host: CountingHost,
    chat: ChatCompletionRequest,
    counted: Callable[[int], CountedT],
    headers: dict[str, str] | None = None,
) -> Response[CountedT]:
    """The answer of a service to a request for a number of tokens.

    Args:
        request: of the client; its body has been read.
        host: has the models.
        chat: the request whose prompt is counted.
        counted: makes the answer of the number.
        headers: of the answer.
    """
    tokens = (await host.tools(chat.model)).tokens
    return json_response(counted(await unless_client_leaves(request, tokens.count(chat))), headers=headers)


class CountTranslation(Generic[CountedT]):
    """The translation of one request; implements `tessera.protocols.translation.Translation`. Nothing is streamed, so
    the methods of a stream add nothing.

    Args:
        chat: the request whose prompt is counted.
        counted: makes the answer of the number of tokens.
    """

    def __init__(self, chat: ChatCompletionRequest, counted: Callable[[int], CountedT]) -> None:
        self._chat = msgspec.structs.replace(chat, max_tokens=1)
        self._counted = counted

    @property
    def chat(self) -> ChatCompletionRequest:
        """The request for one token."""
        return self._chat

    def answer(self, completion: ChatCompletion) -> CountedT:
        """The number of the prompt's tokens.

        Raises:
            BadGatewayError: the answer does not say it.
        """
        if completion.usage.prompt_tokens < 1:
            raise BadGatewayError("the upstream does not say how many tokens a prompt has")
        return self._counted(completion.usage.prompt_tokens)

    def begin(self) -> list[bytes]:
        """Add nothing before the first chunk."""
        return []

    def chunk(self, _: ChatCompletionChunk) -> list[bytes]:
        """Add nothing for a chunk."""
        return []

    def end(self) -> list[bytes]:
        """Add nothing behind the last chunk."""
        return []

    def failed(self, _: TesseraError) -> list[bytes]:
        """Add nothing after a failure."""
        return []
