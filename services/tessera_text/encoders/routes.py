"""The routes of encoders: rerank, score, classify, moderations, and Cohere's embed."""

from __future__ import annotations

from litestar import Response, post

from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.ranking import (
    ClassifiedTexts,
    ClassifyRequest,
    CohereEmbeddings,
    CohereEmbedRequest,
    ModerationList,
    ModerationRequest,
    Reranking,
    RerankRequest,
    ScoreList,
    ScoreRequest,
)
from tessera_text.encoders.embeddings import embed_for_cohere
from tessera_text.encoders.labels import classify, moderate
from tessera_text.encoders.scores import rerank, score
from tessera_text.encoders.service import Encoders


@post(
    ["/v1/rerank", "/v2/rerank", "/rerank"],
    summary="Order documents by how relevant they are to a query.",
    tags=["ranking"],
    status_code=200,
    operation_class=documented(RerankRequest),
)
async def rerank_documents(request: HTTPRequest, encoders: Injected[Encoders]) -> Response[Reranking]:
    """The shapes are Cohere's and Jina's. Long documents are cut; `max_tokens_per_doc` cuts them sooner."""
    body = decode_json(await request.body(), RerankRequest)
    tools = await encoders.tools(body.model, "rerank")
    version = "2" if request.url.path.startswith("/v2/") else "1"
    return json_response(await unless_client_leaves(request, rerank(tools, body, version)))


@post(
    ["/score", "/v1/score"],
    summary="Score pairs of texts.",
    tags=["ranking"],
    status_code=200,
    operation_class=documented(ScoreRequest),
)
async def score_pairs(request: HTTPRequest, encoders: Injected[Encoders]) -> Response[ScoreList]:
    """The shapes are vLLM's. An embedding model scores by the cosine of its vectors."""
    body = decode_json(await request.body(), ScoreRequest)
    tools = await encoders.tools(body.model, "score")
    return json_response(await unless_client_leaves(request, score(tools, body)))


@post(
    ["/classify", "/v1/classify"],
    summary="Classify texts.",
    tags=["ranking"],
    status_code=200,
    operation_class=documented(ClassifyRequest),
)
async def classify_texts(request: HTTPRequest, encoders: Injected[Encoders]) -> Response[ClassifiedTexts]:
    """The shapes are vLLM's."""
    body = decode_json(await request.body(), ClassifyRequest)
    tools = await encoders.tools(body.model, "classify")
    return json_response(await unless_client_leaves(request, classify(tools, body)))


@post(
    "/v1/moderations",
    summary="Find what is harmful in texts.",
    tags=["ranking"],
    status_code=200,
    operation_class=documented(ModerationRequest),
)
async def moderations(request: HTTPRequest, encoders: Injected[Encoders]) -> Response[ModerationList]:
    """OpenAI's shape, with the categories of the classifier. Without `model` the first moderation model answers."""
    body = decode_json(await request.body(), ModerationRequest)
    named = body.model
    tools = await (encoders.first("moderations") if named is None else encoders.tools(named, "moderations"))
    return json_response(await unless_client_leaves(request, moderate(tools, body)))


@post(
    "/v2/embed",
    summary="Vectors of texts, in Cohere's shape.",
    tags=["ranking"],
    status_code=200,
    operation_class=documented(CohereEmbedRequest),
)
async def cohere_embed(request: HTTPRequest, encoders: Injected[Encoders]) -> Response[CohereEmbeddings]:
    """`embedding_types` are float, base64, binary and ubinary."""
    body = decode_json(await request.body(), CohereEmbedRequest)
    tools = await encoders.tools(body.model, "embeddings")
    return json_response(await unless_client_leaves(request, embed_for_cohere(tools, body)))


ENCODER_ROUTES = [rerank_documents, score_pairs, classify_texts, moderations, cohere_embed]
