"""Ollama's API: requests, answers and lines of streams of its chat, generate, embed and model routes.

Request types refuse unknown fields. Fields whose comment says "hint" are accepted and change no answer here. Source:
Ollama's API description, checked against its Python package 0.6.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tessera.wire.chat import Penalty, Request, Seed, Stop, Stops, Temperature

Hint = Any
"""A value that is accepted whatever it is, and without effect."""
ModelName = Annotated[str, Meta(min_length=1, max_length=512)]


class OllamaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an answer is sampled."""

    num_predict: int | None = None
    """Most tokens of the answer; 0 and less: as many as fit."""
    temperature: Temperature | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Seed | None = None
    stop: Stop | Stops | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    mirostat: Literal[0] | None = None
    """Only 0, which switches it off: this sampler is not offered."""
    tfs_z: Annotated[float, Meta(ge=1, le=1)] | None = None
    """Only 1, which switches it off: tail-free sampling is not offered."""
    mirostat_tau: Hint = None  # hint: mirostat is off
    mirostat_eta: Hint = None  # hint
    repeat_last_n: Hint = None  # hint: the penalty counts the prompt and the answer
    penalize_newline: Hint = None  # hint
    num_ctx: Hint = None  # hint: the context is what the server was started with
    num_keep: Hint = None  # hint: nothing is cut out of a prompt
    numa: Hint = None  # hint, as all below: how a model is loaded
    num_batch: Hint = None
    num_gpu: Hint = None
    main_gpu: Hint = None
    low_vram: Hint = None
    f16_kv: Hint = None
    logits_all: Hint = None
    vocab_only: Hint = None
    use_mmap: Hint = None
    use_mlock: Hint = None
    embedding_only: Hint = None
    num_thread: Hint = None


class OllamaFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function of a call, and its arguments as an object."""

    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET
    description: Hint = UNSET


class OllamaCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a tool."""

    function: OllamaFunction
    id: str | UnsetType | None = UNSET
    type: Literal["function"] | UnsetType | None = UNSET


class OllamaTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """Files in base64."""
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    """Name of the tool whose result a `tool` message is."""
    tool_call_id: str | None = None


class OllamaToolFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. Unknown keys are dropped: Ollama's package adds some."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a request offers."""

    function: OllamaToolFunction
    type: Literal["function"] | None = None


class OllamaGeneration(Request, frozen=True, kw_only=True):
    """What `/api/chat` and `/api/generate` share."""

    model: ModelName
    stream: bool | None = None
    """Whether the answer comes in lines; true unless it is false."""
    format: Literal["", "json"] | dict[str, Any] | None = None
    """`json`, or a JSON schema that the answer follows."""
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    keep_alive: Hint = None  # hint: models stay loaded
    truncate: Hint = None  # hint: a prompt that does not fit is refused
    shift: Hint = None  # hint: an answer ends at the end of the context


class OllamaChatRequest(OllamaGeneration, frozen=True, kw_only=True):
    """Body of `POST /api/chat`."""

    messages: Annotated[list[OllamaTurn], Meta(max_length=2048)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=128)] | None = None


class OllamaGenerateRequest(OllamaGeneration, frozen=True, kw_only=True):
    """Body of `POST /api/generate`."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    """What comes behind the answer, for models that fill in the middle."""
    images: list[str] | None = None
    raw: bool | None = None
    """Whether the prompt is taken as it is, without the model's template."""
    template: str | None = None
    """Refused unless it is empty: the model's own template is used."""
    context: list[int] | None = None
    """Refused unless it is empty: a conversation is sent to `/api/chat`."""


class OllamaEmbedRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /api/embed`."""

    model: ModelName
    input: str | list[str]
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    truncate: bool | None = None
    """Whether an input that does not fit is cut at its end, true unless it is false; otherwise it is refused."""
    options: Hint = None  # hint
    keep_alive: Hint = None  # hint


class OllamaEmbeddingsRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /api/embeddings`, the form before `/api/embed`."""

    model: ModelName
    prompt: str
    options: Hint = None  # hint
    keep_alive: Hint = None  # hint


class OllamaModelRequest(Request, frozen=True, kw_only=True):
    """A request that names a model: `/api/show`, `/api/pull`."""

    model: ModelName | None = None
    name: ModelName | None = None
    """The older name of `model`."""
    verbose: Hint = None
    insecure: Hint = None
    stream: bool | None = None


class OllamaTopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaTopLogprob, frozen=True, kw_only=True):
    """A token of the answer."""

    top_logprobs: list[OllamaTopLogprob] | UnsetType = UNSET


class OllamaSaid(msgspec.Struct, frozen=True, kw_only=True):
    """The model's turn, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of `/api/chat` or `/api/generate`, or a line of its stream; durations are nanoseconds."""

    model: str
    created_at: str
    message: OllamaSaid | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    """Always 0: the model is loaded before it is listed."""
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    """Until the first token came."""
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct, frozen=True):
    """Answer of `POST /api/embeddings`."""

    embedding: list[float]


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of model it is; empty where nobody knows it."""

    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of `/api/tags`, or of `/api/ps` with the last three fields."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    """Always 0: the gateway does not know the files."""
    digest: str
    details: OllamaDetails
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(msgspec.Struct, frozen=True):
    """Answer of `/api/tags` and `/api/ps`."""

    models: list[OllamaModel]


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /api/show`."""

    license: str
    modelfile: str
    parameters: str = ""
    template: str = ""
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True):
    """Answer of `/api/version`."""

    version: str


class OllamaStatus(msgspec.Struct, frozen=True):
    """Answer of `/api/pull` for a model that is here."""

    status: str


class OllamaFault(msgspec.Struct, frozen=True):
    """The body of an error response, and the last line of a stream that failed."""

    error: str
