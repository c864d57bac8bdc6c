"""The text service's routes: OpenAI's chat completions, completions, embeddings and models."""

from __future__ import annotations

from typing import TypeAlias

from litestar import Response, post
from litestar.response import Stream

from tessera.engine.host import EngineHost
from tessera.language.routes import LANGUAGE_ROUTES
from tessera.protocols.messages.routes import MESSAGE_ROUTES
from tessera.protocols.responses.routes import RESPONSE_ROUTES
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.web.models import MODEL_ROUTES
from tessera.web.sse import stream_response
from tessera.wire.chat import Completion, CompletionRequest, EmbeddingList, EmbeddingRequest
from tessera.wire.decoding import decode_json
from tessera_text.encoders.embeddings import embed
from tessera_text.encoders.routes import ENCODER_ROUTES
from tessera_text.encoders.service import Encoders
from tessera_text.pipeline import TextTools

TextHost: TypeAlias = EngineHost[TextTools]


@post(
    "/v1/completions",
    summary="Continue a text.",
    tags=["text"],
    status_code=200,
    operation_class=documented(CompletionRequest, returns=Completion, events=Completion),
)
async def completions(request: HTTPRequest, host: Injected[TextHost]) -> Response[Completion] | Stream:
    """Continue one prompt or several. Streams server-sent events when `stream` is true."""
    body = decode_json(await request.body(), CompletionRequest)
    tools = await host.tools(body.model)
    if body.stream:
        return await unless_client_leaves(request, stream_response(tools.completions.stream(body)))
    return json_response(await unless_client_leaves(request, tools.completions.answer(body)))


@post(
    "/v1/embeddings",
    summary="Vectors of texts.",
    tags=["text"],
    status_code=200,
    operation_class=documented(EmbeddingRequest),
)
async def embeddings(
    request: HTTPRequest, host: Injected[TextHost], encoders: Injected[Encoders]
) -> Response[EmbeddingList]:
    """One vector for each input. An encoder pools as its files say; a language model's vector is the normalized mean of
    its last hidden states."""
    body = decode_json(await request.body(), EmbeddingRequest)
    if encoders.has(body.model) or (encoders.loading and not any(one.id == body.model for one in host.models().data)):
        encoder = await encoders.tools(body.model, "embeddings")
        return json_response(await unless_client_leaves(request, embed(encoder, body)))
    tools = await host.tools(body.model)
    return json_response(await unless_client_leaves(request, tools.embeddings.answer(body)))


ROUTES = [
    *MODEL_ROUTES,
    *LANGUAGE_ROUTES,
    *RESPONSE_ROUTES,
    *MESSAGE_ROUTES,
    completions,
    embeddings,
    *ENCODER_ROUTES,
]
