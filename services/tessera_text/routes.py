"""The text service's routes: OpenAI's chat completions, completions, embeddings and models."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.language.routes import LANGUAGE_ROUTES
from tessera.web.app import json_response
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.models import MODEL_ROUTES
from tessera.web.sse import stream_response
from tessera.wire.chat import Completion, CompletionRequest, EmbeddingList, EmbeddingRequest
from tessera.wire.decoding import decode_json
from tessera_text.pipeline import TextTools

Host = EngineHost[TextTools]
TextRequest = Request[Any, Any, State]


@post(
    "/v1/completions",
    summary="Continue a text.",
    tags=["text"],
    status_code=200,
    operation_class=documented(CompletionRequest, returns=Completion, events=Completion),
)
async def completions(request: TextRequest, state: State) -> Response[Completion] | Stream:
    """Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), CompletionRequest)
    host: Host = state.host
    tools = (await host.tools(body.model)).completions
    if body.stream:
        return await unless_client_leaves(request, stream_response(tools.stream(body)))
    return json_response(await unless_client_leaves(request, tools.answer(body)))


@post(
    "/v1/embeddings",
    summary="Vectors of texts.",
    tags=["text"],
    status_code=200,
    operation_class=documented(EmbeddingRequest),
)
async def embeddings(request: TextRequest, state: State) -> Response[EmbeddingList]:
    """The mean of the last hidden states, of length one."""
    body = decode_json(await request.body(), EmbeddingRequest)
    host: Host = state.host
    tools = await host.tools(body.model)
    return json_response(await unless_client_leaves(request, tools.embeddings.answer(body)))


ROUTES = [*MODEL_ROUTES, *LANGUAGE_ROUTES, completions, embeddings]
