"""The text service's routes: OpenAI's chat completions, completions, embeddings and models."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.language.service import EngineHost, find_model
from tessera.web.app import json_response
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.sse import stream_response
from tessera.wire.chat import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
from tessera.wire.decoding import decode_json
from tessera.wire.models import Model, ModelList
from tessera_text.pipeline import TextTools

Host = EngineHost[TextTools]
TextRequest = Request[Any, Any, State]


@get("/v1/models", summary="Models of this service.", tags=["models"])
async def list_models(state: State) -> ModelList:
    """Empty until the engine has loaded."""
    host: Host = state.host
    return host.models()


@get("/v1/models/{model_id:path}", summary="One model.", tags=["models"])
async def get_model(state: State, model_id: str) -> Model:
    """Its card says what is known about it."""
    host: Host = state.host
    return find_model(host.models(), model_id.lstrip("/"))


@post(
    "/v1/chat/completions",
    summary="Answer a conversation.",
    tags=["text"],
    status_code=200,
    operation_class=documented(ChatCompletionRequest),
)
async def chat_completions(request: TextRequest, state: State) -> Response[bytes] | Stream:
    """Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), ChatCompletionRequest)
    host: Host = state.host
    find_model(host.models(), body.model)
    chat = host.tools().chat
    if body.stream:
        return await stream_response(chat.stream(body))
    return json_response(await unless_client_leaves(request, chat.answer(body)))


@post(
    "/v1/completions",
    summary="Continue a text.",
    tags=["text"],
    status_code=200,
    operation_class=documented(CompletionRequest),
)
async def completions(request: TextRequest, state: State) -> Response[bytes] | Stream:
    """Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), CompletionRequest)
    host: Host = state.host
    find_model(host.models(), body.model)
    tools = host.tools().completions
    if body.stream:
        return await stream_response(tools.stream(body))
    return json_response(await unless_client_leaves(request, tools.answer(body)))


@post(
    "/v1/embeddings",
    summary="Vectors of texts.",
    tags=["text"],
    status_code=200,
    operation_class=documented(EmbeddingRequest),
)
async def embeddings(request: TextRequest, state: State) -> Response[bytes]:
    """The mean of the last hidden states, of length one."""
    body = decode_json(await request.body(), EmbeddingRequest)
    host: Host = state.host
    find_model(host.models(), body.model)
    return json_response(await unless_client_leaves(request, host.tools().embeddings.answer(body)))


ROUTES = [list_models, get_model, chat_completions, completions, embeddings]
