"""Counting the tokens of a conversation by a chat request: for servers that count no other way, one token is generated
and the prompt's number of tokens is read from the answer.
"""

from __future__ import annotations

import msgspec

from tessera.errors import BadGatewayError, TesseraError
from tessera.protocols.messages.request import chat_request
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from tessera.wire.message_answers import CountedTokens
from tessera.wire.messages import CountTokensRequest


class CountTranslation:
    """The translation of one request; implements `tessera.protocols.translation.Translation`. It has no stream.

    Args:
        request: as it was decoded.

    Raises:
        InvalidRequestError: the request asks for what cannot be done here.
    """

    def __init__(self, request: CountTokensRequest) -> None:
        self._chat = msgspec.structs.replace(chat_request(request), max_tokens=1)

    @property
    def chat(self) -> ChatCompletionRequest:
        """The request for one token."""
        return self._chat

    def answer(self, completion: ChatCompletion) -> CountedTokens:
        """The number of the prompt's tokens.

        Raises:
            BadGatewayError: the answer does not say it.
        """
        if completion.usage.prompt_tokens < 1:
            raise BadGatewayError("the upstream does not say how many tokens a prompt has")
        return CountedTokens(completion.usage.prompt_tokens)

    def begin(self) -> list[bytes]:
        """Nothing."""
        return []

    def chunk(self, _: ChatCompletionChunk) -> list[bytes]:
        """Nothing."""
        return []

    def end(self) -> list[bytes]:
        """Nothing."""
        return []

    def failed(self, _: TesseraError) -> list[bytes]:
        """Nothing."""
        return []
