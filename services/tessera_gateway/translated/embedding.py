"""Vectors of any upstream that speaks OpenAI's API, in Ollama's shape."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tessera.errors import BadGatewayError
from tessera.web.dependencies import HTTPRequest
from tessera.wire.decoding import DAMAGED
from tessera.wire.ollama import OllamaEmbeddings
from tessera_gateway.translated.translator import Translator
from tessera_gateway.upstream import Upstream


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
    request: HTTPRequest,
    translator: Translator,
    model: str,
    texts: list[str],
    dimensions: int | None = None,
    *,
    cut: bool = False,
) -> OllamaEmbeddings:
    """The vectors of texts, in their order.

    Args:
        request: of the client.
        translator: asks an upstream.
        model: its own name.
        texts: of the client.
        dimensions: length of the vectors; None for the model's own.
        cut: whether texts that are too long are cut, where the upstream can, or refused.

    Raises:
        TesseraError: no upstream can answer, or the one that answered refused.
    """
    began = time.monotonic_ns()
    if not texts:
        return OllamaEmbeddings(model=model, embeddings=[], total_duration=0, prompt_eval_count=0)
    asked: dict[str, Any] = {"input": texts, "encoding_format": "float"}
    if dimensions is not None:
        asked["dimensions"] = dimensions

    def encode(upstream: Upstream) -> bytes:
        return msgspec.json.encode({"model": model, **asked, **(_cutting(upstream, model) if cut else {})})

    upstream, data = await translator.whole(request, model, "embeddings", "/v1/embeddings", encode)
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


def _cutting(upstream: Upstream, model: str) -> dict[str, Any]:
    """The field that has an upstream cut texts that are too long. Servers that are not known to have one get none, and
    refuse such texts in words of their own."""
    if upstream.ours:
        return {"truncate": True}
    found = upstream.models.get(model)
    return {"truncate_prompt_tokens": -1} if found is not None and found.owned_by == "vllm" else {}
