"""Chat completions, completions, embeddings and tokens, passed through. Images come in chat messages as data URLs."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.datastructures import State
from litestar.types import ASGIApp

from tessera.web.docs import documented
from tessera.wire.chat import ChatCompletionRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest
from tessera.wire.tools import DetokenizeRequest
from tessera_gateway.limits import read_json
from tessera_gateway.proxy import Proxy


@post(
    "/v1/chat/completions",
    status_code=200,
    summary="Answer a conversation.",
    tags=["language"],
    operation_class=documented(ChatCompletionRequest),
)
async def chat_completions(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Streams server-sent events with `stream: true`. A vision model takes images in messages, by data URL."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/chat/completions", "chat", await read_json(request))


@post(
    "/v1/completions",
    status_code=200,
    summary="Continue a text.",
    tags=["language"],
    operation_class=documented(CompletionRequest),
)
async def completions(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Streams server-sent events with `stream: true`."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/completions", "completions", await read_json(request))


@post(
    "/v1/embeddings",
    status_code=200,
    summary="Turn texts into vectors.",
    tags=["language"],
    operation_class=documented(EmbeddingRequest),
)
async def embeddings(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Vectors come as lists of floats or, with `encoding_format: base64`, as little-endian float32."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/v1/embeddings", "embeddings", await read_json(request))


@post(
    "/tokenize",
    status_code=200,
    summary="The tokens of a prompt.",
    tags=["language"],
    operation_class=documented(TokenizeRequest),
)
async def tokenize(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Of a text, or of a conversation as the model's template writes it. Route and shapes are vLLM's."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/tokenize", "chat", await read_json(request))


@post(
    "/detokenize",
    status_code=200,
    summary="The text of tokens.",
    tags=["language"],
    operation_class=documented(DetokenizeRequest),
)
async def detokenize(request: Request[Any, Any, Any], state: State) -> ASGIApp:
    """Control tokens included. Route and shapes are vLLM's."""
    proxy: Proxy = state.proxy
    return await proxy.forward(request, "/detokenize", "chat", await read_json(request))
