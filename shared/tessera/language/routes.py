"""The routes of every service whose tools can chat: text, and vision with images in the messages."""

from __future__ import annotations

from typing import Any, Protocol

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.language.chat import ChatCompletions
from tessera.language.tokens import Tokenization
from tessera.web.app import json_response
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.sse import stream_response
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, TokenizeRequest
from tessera.wire.decoding import decode_json
from tessera.wire.tools import Detokenized, DetokenizeRequest, Tokenized


class ChatTools(Protocol):
    """What the routes need of a service's tools."""

    @property
    def chat(self) -> ChatCompletions:
        """Answers conversations."""
        ...

    @property
    def tokens(self) -> Tokenization:
        """Shows a prompt's tokens."""
        ...


@post(
    "/v1/chat/completions",
    summary="Answer a conversation.",
    tags=["chat"],
    status_code=200,
    operation_class=documented(ChatCompletionRequest, returns=ChatCompletion, events=ChatCompletionChunk),
)
async def chat_completions(request: Request[Any, Any, State], state: State) -> Response[ChatCompletion] | Stream:
    """Images come as data URLs, for models that see. Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), ChatCompletionRequest)
    host: EngineHost[ChatTools] = state.host
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
async def tokenize(request: Request[Any, Any, State], state: State) -> Response[Tokenized]:
    """Of a text, or of a conversation as the model's template writes it. The shapes are vLLM's."""
    body = decode_json(await request.body(), TokenizeRequest)
    host: EngineHost[ChatTools] = state.host
    tokens = (await host.tools(body.model)).tokens
    return json_response(await unless_client_leaves(request, tokens.tokenize(body)))


@post(
    "/detokenize",
    summary="The text of tokens.",
    tags=["tokens"],
    status_code=200,
    operation_class=documented(DetokenizeRequest),
)
async def detokenize(request: Request[Any, Any, State], state: State) -> Response[Detokenized]:
    """Control tokens included. The shapes are vLLM's."""
    body = decode_json(await request.body(), DetokenizeRequest)
    host: EngineHost[ChatTools] = state.host
    tokens = (await host.tools(body.model)).tokens
    return json_response(await unless_client_leaves(request, tokens.detokenize(body)))


LANGUAGE_ROUTES = [chat_completions, tokenize, detokenize]
