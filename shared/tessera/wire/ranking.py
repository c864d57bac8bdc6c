"""Reranking, scores, classes and moderations, as Cohere's, Jina's, vLLM's and OpenAI's wires have them.

One answer of `/rerank` serves Cohere's clients and Jina's: each finds its own fields and passes over the others.
Request types refuse unknown fields. Sources: the references of the four APIs, and the packages `cohere` and `openai`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tessera.wire.chat import Count, Deadline, Priority, Request, Usage
from tessera.wire.conversation import TextPart
from tessera.wire.truncation import Truncate, TruncateTokens

CoherePriority = Annotated[int, Meta(ge=0, le=999)]


class RerankRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/rerank`, `/v2/rerank` and `/rerank`.

    A document is a text, or an object with `text` whose other fields come back with it.
    """

    model: str
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1)]
    top_n: Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    # beyond Cohere and Jina
    instruction: str | None = None
    truncate_prompt_tokens: TruncateTokens | None = None
    priority: CoherePriority = 0
    deadline_s: Deadline | None = None


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place among the results: its index in the request and how relevant it is to the query."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Version of Cohere's API that an answer follows."""

    version: str


class BilledUnits(msgspec.Struct, frozen=True, kw_only=True):
    """What Cohere would bill; here nobody does."""

    input_tokens: int | UnsetType = UNSET
    search_units: int | UnsetType = UNSET


class CohereTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that were computed."""

    input_tokens: int


class CohereMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Cohere's account of a request."""

    api_version: CohereVersion
    billed_units: BilledUnits
    tokens: CohereTokens


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a rerank route: the documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedDocument]
    usage: Usage
    meta: CohereMeta


class ScoreRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /score` and `/v1/score`: one text against one or many, or as many against as many."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    encoding_format: Literal["float"] = "float"
    truncate_prompt_tokens: TruncateTokens | None = None
    instruction: str | None = None
    user: str | None = None
    priority: Priority = 0
    deadline_s: Deadline | None = None


class PairScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a score route."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: Usage


class ClassifyRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /classify` and `/v1/classify`."""

    model: str
    input: str | list[str]
    truncate_prompt_tokens: TruncateTokens | None = None
    user: str | None = None
    priority: Priority = 0
    deadline_s: Deadline | None = None


class TextClass(msgspec.Struct, frozen=True, kw_only=True):
    """The likeliest label of a text, and the probabilities of all labels in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifiedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a classify route."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[TextClass]
    usage: Usage


class ModerationRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/moderations`. Without `model` the first moderation model answers."""

    input: str | list[str | TextPart]
    model: str | None = None


class Moderation(msgspec.Struct, frozen=True, kw_only=True):
    """What a classifier found in one input. Categories are those that the classifier knows, no others."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/moderations`."""

    id: str
    model: str
    results: list[Moderation]


class CohereTextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A piece of text of an input of Cohere's."""

    text: str


class CohereInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input of Cohere's, in pieces that are joined."""

    content: Annotated[list[CohereTextPart], Meta(min_length=1)]


class CohereEmbedRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v2/embed`: `texts`, or `inputs`."""

    model: str
    input_type: str | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    inputs: Annotated[list[CohereInput], Meta(min_length=1)] | None = None
    embedding_types: Annotated[list[Literal["float", "base64", "binary", "ubinary"]], Meta(min_length=1)] | None = None
    output_dimension: Count | None = None
    max_tokens: Count | None = None
    truncate: Truncate = "END"
    priority: CoherePriority = 0


class CohereVectors(msgspec.Struct, frozen=True, kw_only=True, rename={"floats": "float"}):
    """The vectors of all texts in each form that was asked for; bits are packed, eight dimensions a byte."""

    floats: list[list[float]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v2/embed`."""

    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
