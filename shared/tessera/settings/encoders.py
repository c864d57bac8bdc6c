"""The settings of encoders (embedding models, rerankers, classifiers), parts of the text service's section."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tessera.settings.section import DEVICE, THREADS, NonNegative, Positive, Section, described

EncoderRole = Literal["embedding", "rerank", "classify", "moderation"]
PoolingKind = Literal["mean", "cls", "last", "max"]


class EncoderSettings(Section, frozen=True, kw_only=True):
    """One encoder: a model that turns texts into vectors or scores, and generates nothing."""

    source: Annotated[
        str, described("The model: the path of a directory, a folder in the models directory, or `hf:owner/name`.")
    ]
    name: Annotated[str, described("Name that requests use. Empty: the model's own.")] = ""
    role: Annotated[
        Literal["auto", "embedding", "rerank", "classify", "moderation"],
        described(
            "What it is for. `auto` takes it from the model's files: embedding, or for a sequence classifier `rerank` "
            "with one label and `classify` with several. A causal language model needs `embedding`, or `rerank` for "
            "one that answers yes or no. `moderation` is a classifier that answers /v1/moderations too."
        ),
    ] = "auto"
    pooling: Annotated[
        Literal["auto", "mean", "cls", "last", "max"],
        described(
            "How an embedding is made of the tokens' hidden states. `auto`: as the model's sentence-transformers files "
            "say, else the mean."
        ),
    ] = "auto"
    normalize: Annotated[
        Literal["auto", "on", "off"],
        described("Whether embeddings have length one. `auto`: as the model's files say, else they have."),
    ] = "auto"
    dimensions: Annotated[
        Literal["model", "any"],
        described(
            "Which `dimensions` a request may ask for. `model`: those that the model's configuration names (matryoshka "
            "embeddings). `any`: all up to the length of its vectors; a model that was not trained for it gets worse."
        ),
    ] = "model"
    max_tokens: Annotated[NonNegative, described("Longest text in tokens. 0: as the model's files say.")] = 0
    template: Annotated[
        str,
        described(
            "How a reranker reads a pair, with {instruction}, {query} and {document}. Empty: the pair form of its "
            "tokenizer, or Qwen3-Reranker's prompt for a model that answers yes or no."
        ),
    ] = ""
    instruction: Annotated[str, described("What takes the place of {instruction} in the template.")] = (
        "Given a web search query, retrieve relevant passages that answer the query"
    )
    categories: Annotated[
        dict[str, str],
        described(
            "For moderation: the category of each label that counts; other labels are harmless. Empty: every label is "
            "a category."
        ),
    ] = {}  # noqa: RUF012 - msgspec copies it
    threshold: Annotated[
        float, Meta(ge=0, le=1), described("For moderation: the score from which on a category is flagged, 0 to 1.")
    ] = 0.5


class EncoderEngineSettings(Section, frozen=True, kw_only=True):
    """The engine of all encoders: its device, its steps and its limits. Without encoders it does not run."""

    device: Annotated[Literal["auto", "cpu", "cuda"], DEVICE] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        described("Type of the arithmetic. `auto`: bfloat16 on CUDA, float32 on a CPU."),
    ] = "auto"
    load: Annotated[
        Literal["weights", "dummy"],
        described("Source of the weights. `dummy`: random values of the models' shapes, for measuring speed."),
    ] = "weights"
    threads: Annotated[NonNegative, THREADS] = 0
    max_batch_tokens: Annotated[
        Positive, described("Most tokens of one step, of several requests. A longer text has a step of its own.")
    ] = 2048
    max_waiting: Annotated[
        Positive, described("Most requests in the queue. Further ones are answered 429 with Retry-After.")
    ] = 256
    max_texts: Annotated[Positive, described("Most inputs or documents of one request.")] = 2048
    max_request_tokens: Annotated[Positive, described("Most tokens of all texts of one request together.")] = 300_000
