"""The routes of every service that answers conversations: text, and vision with images in the messages.

The app provides its `EngineHost` as the dependency `host`. Knows no template and no image: the service's tools do.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from litestar import Response, post
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.language.chat import ChatCompletions
from tessera.language.tokens import Tokenization
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.sse import stream_response
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from tessera.wire.decoding import decode_json
from tessera.wire.tools import Detokenized, DetokenizeRequest, Tokenized
from tessera.wire.vllm.tokens import TokenizeRequest


class ChatTools(Protocol):
    """What these routes need of the tools of a service's model."""

    @property
    def chat(self) -> ChatCompletions:
        """Answers conversations."""
        ...

    @property
    def tokens(self) -> Tokenization:
        """Converts between text and token ids."""
        ...


ChatHost: TypeAlias = EngineHost[ChatTools]


@post(
    "/v1/chat/completions",
    summary="Answer a conversation.",
    tags=["chat"],
    status_code=200,
    operation_class=documented(ChatCompletionRequest, returns=ChatCompletion, events=ChatCompletionChunk),
)
async def chat_completions(request: HTTPRequest, host: Injected[ChatHost]) -> Response[ChatCompletion] | Stream:
    """Vision models take images as data URLs. Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), ChatCompletionRequest)
    chat = (await host.tools(body.model)).chat
    if body.stream:
        return await unless_client_leaves(request, stream_response(chat.stream(body)))
    return json_response(await unless_client_leaves(request, chat.answer(body)))


@post(
    "/tokenize",
    summary="The tokens of a prompt.",
    tags=["tokens"],
    status_code=200,
    operation_class=documented(TokenizeRequest),
)
async def tokenize(request: HTTPRequest, host: Injected[ChatHost]) -> Response[Tokenized]:
    """Takes a text, or a conversation, which the model's template writes. The shapes are vLLM's."""
    body = decode_json(await request.body(), TokenizeRequest)
    tokens = (await host.tools(body.model)).tokens
    return json_response(await unless_client_leaves(request, tokens.tokenize(body)))


@post(
    "/detokenize",
    summary="The text of tokens.",
    tags=["tokens"],
    status_code=200,
    operation_class=documented(DetokenizeRequest),
)
async def detokenize(request: HTTPRequest, host: Injected[ChatHost]) -> Response[Detokenized]:
    """The text includes control tokens. The shapes are vLLM's."""
    body = decode_json(await request.body(), DetokenizeRequest)
    tokens = (await host.tools(body.model)).tokens
    return json_response(await unless_client_leaves(request, tokens.detokenize(body)))


LANGUAGE_ROUTES = [chat_completions, tokenize, detokenize]
