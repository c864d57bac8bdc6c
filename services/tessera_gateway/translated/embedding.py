"""Vectors of any upstream that speaks OpenAI's API, in Ollama's shape."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tessera.errors import BadGatewayError
from tessera.web.dependencies import HTTPRequest
from tessera.wire.decoding import DAMAGED
from tessera.wire.ollama import OllamaEmbeddings
from tessera_gateway.limits import JsonBody
from tessera_gateway.translated.translator import Translator


class ForeignVector(msgspec.Struct, frozen=True):
    """The vector of one text, at the text's place in the request."""

    embedding: list[float]
    index: int | None = None


class ForeignEmbeddingUsage(msgspec.Struct, frozen=True):
    """Number of tokens of all texts together."""

    prompt_tokens: int | None = None


class ForeignVectors(msgspec.Struct, frozen=True):
    """An answer of `/v1/embeddings`."""

    data: list[ForeignVector]
    usage: ForeignEmbeddingUsage | None = None


async def embed(
    request: HTTPRequest, translator: Translator, model: str, texts: list[str], dimensions: int | None
) -> OllamaEmbeddings:
    """The vectors of texts, in their order.

    Raises:
        TesseraError: no upstream can answer, or the one that answered refused.
    """
    began = time.monotonic_ns()
    if not texts:
        return OllamaEmbeddings(model=model, embeddings=[], total_duration=0, prompt_eval_count=0)
    asked: dict[str, Any] = {"input": texts, "encoding_format": "float"}
    if dimensions is not None:
        asked["dimensions"] = dimensions
    body = JsonBody(model, msgspec.json.encode({"model": model, **asked}), "application/json")
    upstream, data = await translator.whole(request, body, "embeddings", "/v1/embeddings")
    try:
        found = msgspec.json.decode(data, type=ForeignVectors)
    except (msgspec.ValidationError, *DAMAGED) as error:
        raise BadGatewayError(f"the upstream {upstream} answered with what are no embeddings: {error}") from error
    if len(found.data) != len(texts):
        raise BadGatewayError(f"the upstream {upstream} answered {len(found.data)} vectors for {len(texts)} texts")
    ordered = sorted(enumerate(found.data), key=lambda pair: pair[0] if pair[1].index is None else pair[1].index)
    return OllamaEmbeddings(
        model=model,
        embeddings=[vector.embedding for _, vector in ordered],
        total_duration=time.monotonic_ns() - began,
        prompt_eval_count=(found.usage.prompt_tokens or 0) if found.usage else 0,
    )
