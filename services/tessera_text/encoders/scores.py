"""Reranks and scores pairs of texts, by a cross-encoder, by a model that answers yes or no, or by embeddings."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from operator import mul

from tessera.errors import InvalidRequestError
from tessera.hub.encoder_files import Activation
from tessera.wire.engine import EncoderText
from tessera.wire.ranking import (
    BilledUnits,
    CohereMeta,
    CohereTokens,
    CohereVersion,
    PairScore,
    RankedDocument,
    Reranking,
    RerankRequest,
    ScoreList,
    ScoreRequest,
)
from tessera_text.encoders.inputs import Cut, cut_of
from tessera_text.encoders.tools import EncoderTools, tokens_of, usage_of

DOCUMENTS_PER_SEARCH = 100
"""Documents of one of Cohere's search units."""


async def rerank(tools: EncoderTools, request: RerankRequest, version: str) -> Reranking:
    """The documents, the most relevant first; equal ones in the order of the request. Long documents are cut.

    Args:
        tools: of a reranker.
        request: the query and the documents.
        version: of Cohere's API whose answer is wanted; version 2 has no documents unless they are asked for.

    Raises:
        InvalidRequestError: a document has no text, or there are too many.
        ContextLengthError: the query leaves no room for a document.
    """
    documents = [_text_of(document, index) for index, document in enumerate(request.documents)]
    cut = cut_of("END", request.truncate_prompt_tokens, tools.inputs.context)
    texts = await tools.inputs.pairs(
        [request.query],
        documents,
        cut,
        params=("query", "documents"),
        document_tokens=request.max_tokens_per_doc,
        instruction=request.instruction,
    )
    rows = await tools.run(texts, priority=request.priority, deadline_s=request.deadline_s)
    scores = [activated(list(row), tools.files.activation)[0] for row in rows]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    with_documents = version != "2" if request.return_documents is None else request.return_documents
    results = []
    for index in order:
        ranked = RankedDocument(index=index, relevance_score=scores[index])
        if with_documents:
            given = request.documents[index]
            document = {"text": given} if isinstance(given, str) else given
            ranked = RankedDocument(index=index, relevance_score=scores[index], document=document)
        results.append(ranked)
    return Reranking(
        id=f"rerank-{uuid.uuid4().hex}",
        model=tools.card.id,
        results=results,
        usage=usage_of(texts),
        meta=CohereMeta(
            api_version=CohereVersion(version=version),
            billed_units=BilledUnits(search_units=math.ceil(len(documents) / DOCUMENTS_PER_SEARCH)),
            tokens=CohereTokens(input_tokens=tokens_of(texts)),
        ),
    )


async def score(tools: EncoderTools, request: ScoreRequest) -> ScoreList:
    """A score for each pair: a reranker's, or the cosine of two embeddings.

    Raises:
        InvalidRequestError: the numbers of texts do not fit, or a text is empty.
        ContextLengthError: a pair is too long and is not to be cut.
    """
    first = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    second = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    if not first or not second or len(first) not in {1, len(second)}:
        raise InvalidRequestError(
            f"`text_1` has {len(first)} texts and `text_2` {len(second)}; give one text against one or many, or as "
            "many against as many",
            param="text_1",
        )
    cut = cut_of(None, request.truncate_prompt_tokens, tools.inputs.context)
    if tools.files.role == "embedding":
        scores, texts = await _cosines(tools, request, first, second, cut)
    else:
        texts = await tools.inputs.pairs(
            first, second, cut, params=("text_1", "text_2"), instruction=request.instruction
        )
        rows = await tools.run(texts, priority=request.priority, deadline_s=request.deadline_s)
        scores = [activated(list(row), tools.files.activation)[0] for row in rows]
    return ScoreList(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=tools.card.id,
        data=[PairScore(index=index, score=value) for index, value in enumerate(scores)],
        usage=usage_of(texts),
    )


def activated(outputs: Sequence[float], activation: Activation) -> list[float]:
    """The scores of a classifier's outputs."""
    if activation == "identity":
        return list(outputs)
    if activation == "sigmoid":
        return [_sigmoid(value) for value in outputs]
    largest = max(outputs)
    powers = [math.exp(value - largest) for value in outputs]
    return [power / sum(powers) for power in powers]


async def _cosines(
    tools: EncoderTools, request: ScoreRequest, first: list[str], second: list[str], cut: Cut
) -> tuple[list[float], list[EncoderText]]:
    if request.instruction is not None:
        raise InvalidRequestError("`instruction` has no place in how this model reads texts", param="instruction")
    prompts = [tools.inputs.prompt(kind, None) for kind in ("query", "document")]
    queries = await tools.inputs.texts(first, cut, prompt=prompts[0], param="text_1")
    documents = await tools.inputs.texts(second, cut, prompt=prompts[1], param="text_2")
    texts = [*queries, *documents]
    vectors = await tools.run(texts, priority=request.priority, deadline_s=request.deadline_s)
    heads, tails = vectors[: len(queries)], vectors[len(queries) :]
    heads = heads * len(tails) if len(heads) == 1 else heads
    return [_cosine(head, tail) for head, tail in zip(heads, tails, strict=True)], texts


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.sqrt(math.fsum(map(mul, one, one)) * math.fsum(map(mul, other, other))) or 1.0
    return math.fsum(map(mul, one, other)) / lengths


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def _text_of(document: object, index: int) -> str:
    text = document if isinstance(document, str) else document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"`documents[{index}]` has no `text`; a document is a string or an object with one", param="documents"
        )
    return text
