"""What a protocol beside chat completions is: a request that becomes a chat request, and answers that become its own.

The same translation serves in a service, around its `ChatCompletions`, and in the gateway, around an upstream that
speaks chat completions alone. One object is made for each request and holds what its answer depends on. Knows no
protocol, no engine and no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, TypeVar

from tessera.errors import TesseraError
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest

AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class Translation(Protocol[AnswerT_co]):
    """One request of a protocol. Its stream's methods are called in this order: `begin`, `chunk` …, then `end` or
    `failed`; each returns encoded events (or lines) for the client."""

    @property
    def chat(self) -> ChatCompletionRequest:
        """The request in chat completions' terms. A streamed one asks for its usage."""
        ...

    def answer(self, completion: ChatCompletion) -> AnswerT_co:
        """The whole answer."""
        ...

    def begin(self) -> list[bytes]:
        """What comes before the first chunk."""
        ...

    def chunk(self, chunk: ChatCompletionChunk) -> list[bytes]:
        """What a chunk adds."""
        ...

    def end(self) -> list[bytes]:
        """What comes behind the last chunk."""
        ...

    def failed(self, error: TesseraError) -> list[bytes]:
        """The end of a stream that failed after it had begun."""
        ...


async def translated(
    translation: Translation[object], chunks: AsyncIterator[ChatCompletionChunk]
) -> AsyncGenerator[bytes]:
    """A stream of chunks in the protocol's events.

    The first chunk is awaited before anything is yielded, so that a refused request is an error with its own status.
    A failure behind it is raised: what frames the stream asks the translation how it ends.
    """
    begun = False
    async for chunk in chunks:
        if not begun:
            begun = True
            for piece in translation.begin():
                yield piece
        for piece in translation.chunk(chunk):
            yield piece
    for piece in translation.end() if begun else [*translation.begin(), *translation.end()]:
        yield piece
