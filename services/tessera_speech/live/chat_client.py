"""The client of the language model of a conversation: any server with OpenAI's chat completions, over HTTP.

Knows nothing about audio or sessions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from tessera.errors import BadGatewayError, ErrorBody, TesseraError, UnavailableError, from_body
from tessera.web.tenant import TENANT_HEADER
from tessera.wire.decoding import DAMAGED
from tessera.wire.models import ModelList

CONNECT_TIMEOUT_S = 5.0
"""Seconds to connect, and to list models."""
READ_TIMEOUT_S = 120.0
"""Seconds between two parts of a response."""
MAX_LINE_BYTES = 1 << 20
"""Most bytes of an event of the stream, or of an error."""
CONTEXT_FULL = "context_length_exceeded"
"""Error code of a conversation that is too long for the model."""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of a response."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: TokenUsage | None = None
    error: ErrorBody | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorBody


class ChatClient:
    """The client of one server.

    Args:
        session: its connections.
        url: address of the server, without `/v1`.
        api_key: sent as a bearer token if it is not empty.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str = "") -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)

    async def first_chat_model(self) -> str:
        """Id of the first chat model of the server.

        Raises:
            UnavailableError: the server is away, or has no such model.
        """
        try:
            async with self._session.get(
                f"{self._url}/v1/models", headers=self._key, timeout=aiohttp.ClientTimeout(total=CONNECT_TIMEOUT_S)
            ) as response:
                listed = msgspec.json.decode(await response.read(), type=ModelList)
        except (aiohttp.ClientError, TimeoutError, OSError, *DAMAGED) as error:
            raise UnavailableError(f"the text service does not name its models: {error}", retry_after=2) from error
        for model in listed.data:
            if model.card is None or "chat" in model.card.tasks:
                return model.id
        raise UnavailableError("the text service has no model that chats", retry_after=2)

    async def stream(
        self, model: str, messages: list[dict[str, str]], *, max_tokens: int | None, tenant: str
    ) -> AsyncGenerator[str | TokenUsage, None]:
        """The response to a conversation as it is generated, then its token usage. Closing the iterator cancels.

        If the conversation is too long for the model, the older half is left out, repeatedly until it fits.

        Raises:
            TesseraError: the error of the server, or that it is away.
        """
        while True:
            try:
                parts = self._stream_once(model, messages, max_tokens, tenant)
                async with aclosing(parts):
                    async for part in parts:
                        yield part
                return
            except TesseraError as error:
                later = [message for message in messages if message["role"] != "system"]
                if error.body().code != CONTEXT_FULL or len(later) < 2:
                    raise
                kept = later[len(later) // 2 :]
                messages = [message for message in messages if message["role"] == "system" or message in kept]

    async def _stream_once(
        self, model: str, messages: list[dict[str, str]], max_tokens: int | None, tenant: str
    ) -> AsyncGenerator[str | TokenUsage, None]:
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        headers = {**self._key, **({TENANT_HEADER: tenant} if tenant else {})}
        try:
            async with self._session.post(
                f"{self._url}/v1/chat/completions",
                json=body,
                headers=headers,
                timeout=self._timeout,
                read_bufsize=MAX_LINE_BYTES,
            ) as response:
                if response.status != 200:
                    raise _refused(response.status, await response.content.read(MAX_LINE_BYTES))
                async for line in response.content:
                    data = line.strip().removeprefix(b"data:").strip()
                    if not line.startswith(b"data:") or data == b"[DONE]":
                        continue
                    chunk = msgspec.json.decode(data, type=_Chunk)
                    if chunk.error is not None:
                        raise from_body(chunk.error)
                    for choice in chunk.choices:
                        if choice.delta.content:
                            yield choice.delta.content
                    if chunk.usage is not None:
                        yield chunk.usage
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"the text service cannot be reached: {error}", retry_after=2) from error
        except (ValueError, *DAMAGED) as error:
            raise BadGatewayError(f"the text service answered what is no chat completion: {error}") from error


def _refused(status: int, body: bytes) -> TesseraError:
    try:
        return from_body(msgspec.json.decode(body, type=_Refusal).error)
    except DAMAGED:
        return BadGatewayError(f"the text service answered {status}")
