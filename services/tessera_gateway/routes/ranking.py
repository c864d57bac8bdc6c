"""Rerank, score, classify, moderations and Cohere's embed, passed through to encoders."""

from __future__ import annotations

from litestar import post
from litestar.types import ASGIApp

from tessera.errors import NotFoundError
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.docs import documented
from tessera.wire.models import Task
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
from tessera_gateway.limits import read_json
from tessera_gateway.proxy import Proxy


@post(
    ["/v1/rerank", "/v2/rerank", "/rerank"],
    status_code=200,
    summary="Order documents by how relevant they are to a query.",
    tags=["ranking"],
    operation_class=documented(RerankRequest, returns=Reranking),
)
async def rerank(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """The shapes are Cohere's and Jina's."""
    return await proxy.forward(request, request.url.path, "rerank", await read_json(request))


@post(
    ["/v1/score", "/score"],
    status_code=200,
    summary="Score pairs of texts.",
    tags=["ranking"],
    operation_class=documented(ScoreRequest, returns=ScoreList),
)
async def score(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """The shapes are vLLM's. An embedding model scores by the cosine of its vectors."""
    return await proxy.forward(request, "/score", "score", await read_json(request))


@post(
    ["/v1/classify", "/classify"],
    status_code=200,
    summary="Classify texts.",
    tags=["ranking"],
    operation_class=documented(ClassifyRequest, returns=ClassifiedTexts),
)
async def classify(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """The shapes are vLLM's."""
    return await proxy.forward(request, "/classify", "classify", await read_json(request))


@post(
    "/v1/moderations",
    status_code=200,
    summary="Find what is harmful in texts.",
    tags=["ranking"],
    operation_class=documented(ModerationRequest, returns=ModerationList),
)
async def moderations(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """OpenAI's shape, with the categories of the classifier. Without `model` the first moderation model answers."""
    first = await _first(proxy, "moderations")
    return await proxy.forward(request, "/v1/moderations", "moderations", await read_json(request, default=first))


@post(
    "/v2/embed",
    status_code=200,
    summary="Turn texts into vectors, in Cohere's shape.",
    tags=["ranking"],
    operation_class=documented(CohereEmbedRequest, returns=CohereEmbeddings),
)
async def cohere_embed(request: HTTPRequest, proxy: Injected[Proxy]) -> ASGIApp:
    """`embedding_types` are float, base64, binary and ubinary."""
    return await proxy.forward(request, "/v2/embed", "embeddings", await read_json(request))


RANKING_ROUTES = [rerank, score, classify, moderations, cohere_embed]


async def _first(proxy: Proxy, task: Task) -> str:
    """The first model that does a task.

    Raises:
        NotFoundError: there is none; says what to configure.
    """
    found = proxy.upstreams.first(task)
    if found is None:
        await proxy.upstreams.refresh()
        found = proxy.upstreams.first(task)
    if found is None:
        raise NotFoundError(
            f'no model here does {task}; name a classifier in [[text.encoders]] with role = "moderation"'
        )
    return found
