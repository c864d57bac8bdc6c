"""Chat completions, completions, embeddings and tokens, passed through. Images come in chat messages as data URLs."""

from __future__ import annotations

from litestar import post
from litestar.types import ASGIApp

from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    EmbeddingList,
    EmbeddingRequest,
)
from tessera.wire.tools import Detokenized, DetokenizeRequest, Tokenized
from tessera.wire.vllm.tokens import TokenizeRequest
from tessera_gateway.limits import read_json
from tessera_gateway.proxy import Proxy


@post(
    "/v1/chat/completions",
    status_code=200,
    summary="Answer a conversation.",
    tags=["language"],
    operation_class=documented(ChatCompletionRequest, returns=ChatCompletion, events=ChatCompletionChunk),
)
async def chat_completions(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Streams server-sent events with `stream: true`. A vision model takes images in messages, by data URL."""
    return await proxy.forward(request, "/v1/chat/completions", "chat", await read_json(request))


@post(
    "/v1/completions",
    status_code=200,
    summary="Continue a text.",
    tags=["language"],
    operation_class=documented(CompletionRequest, returns=Completion, events=Completion),
)
async def completions(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Streams server-sent events with `stream: true`."""
    return await proxy.forward(request, "/v1/completions", "completions", await read_json(request))


@post(
    "/v1/embeddings",
    status_code=200,
    summary="Turn texts into vectors.",
    tags=["language"],
    operation_class=documented(EmbeddingRequest, returns=EmbeddingList),
)
async def embeddings(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Vectors come as lists of floats or, with `encoding_format: base64`, as little-endian float32."""
    return await proxy.forward(request, "/v1/embeddings", "embeddings", await read_json(request))


@post(
    "/tokenize",
    status_code=200,
    summary="The tokens of a prompt.",
    tags=["language"],
    operation_class=documented(TokenizeRequest, returns=Tokenized),
)
async def tokenize(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Takes a text, or a conversation, which the model's template writes. Route and shapes are vLLM's."""
    return await proxy.forward(request, "/tokenize", "chat", await read_json(request))


@post(
    "/detokenize",
    status_code=200,
    summary="The text of tokens.",
    tags=["language"],
    operation_class=documented(DetokenizeRequest, returns=Detokenized),
)
async def detokenize(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """Control tokens included. Route and shapes are vLLM's."""
    return await proxy.forward(request, "/detokenize", "chat", await read_json(request))
