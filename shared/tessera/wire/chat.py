"""Chat completions, completions and embeddings as OpenAI's wire has them.

Request types refuse unknown fields: a parameter that would be ignored is an error. Fields after "beyond OpenAI" are
those that vLLM and SGLang made customary. Source: OpenAI's API reference, checked against its Python SDK 3.52.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tessera.wire.conversation import Message, RefusalText, TextPart
from tessera.wire.hints import StreamOptions
from tessera.wire.tools import ResponseFormat, StructuredOutputs, Tool, ToolCall, ToolCallDelta, ToolChoice
from tessera.wire.truncation import Truncate, TruncateTokens
from tessera.wire.vllm.logprobs import CompletionLogprobs, PromptLogprobs
from tessera.wire.vllm.sampling import SamplingOptions, Source

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(gt=0, le=1)]
Nucleus = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Priority = Annotated[int, Meta(ge=0, le=100)]
Deadline = Annotated[float, Meta(ge=0.01, le=86_400)]
"""A hundredth of a second at least: no answer comes sooner, and less is a unit mistaken."""
Stop = Annotated[str, Meta(max_length=256)]
Stops = Annotated[list[Stop], Meta(max_length=16)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies, which refuse unknown fields."""


class SamplingRequest(SamplingOptions, frozen=True, kw_only=True):
    """Fields that chat completions and completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Nucleus | None = None
    """0 takes the likeliest token, as temperature 0 does."""
    n: Count = 1
    best_of: Count | None = None
    """1 or `n`: answers are not chosen among more than are returned."""
    stop: Stop | Stops | None = None
    """Empty strings stop nothing."""
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    seed: Seed | None = None
    response_format: ResponseFormat | None = None
    # beyond OpenAI
    structured_outputs: StructuredOutputs | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1: no limit."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    typical_p: Probability = 1.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] = 1.0
    ignore_eos: bool = False
    priority: Priority = 0
    """Requests with a lower value are served first. 0 is the default and the lowest, so no request overtakes one
    without a priority."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """How many likeliest tokens to report at each position of the prompt, beside the token of the prompt."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Only requests with the same salt share cached prefixes."""
    deadline_s: Deadline | None = None
    """Seconds after which the answer is of no use and its work is stopped."""


class ChatCompletionRequest(SamplingRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=2048)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Without effect: no model here has such a switch."""
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    """What the answer is: text, and so without effect."""
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    functions: Any = None
    """The form of `tools` before 2023; refused unless it is null."""
    function_call: Any = None
    """The form of `tool_choice` before 2023; refused unless it is null."""
    # beyond OpenAI
    chat_template: Source | None = None
    """A Jinja template in place of the model's own, where the setting `request_chat_templates` allows it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the model's chat template, such as `enable_thinking` of Qwen3."""
    add_generation_prompt: bool | None = None
    """Whether the prompt opens the assistant's turn: true unless `continue_final_message` is."""
    continue_final_message: bool = False
    """Whether the answer goes on with the last message, which the prompt leaves open."""
    add_special_tokens: bool | None = None
    """Only false: the chat template writes the special tokens."""
    separate_reasoning: bool | None = None
    """Only true: thoughts stand in `reasoning_content`. The name is SGLang's."""
    stream_reasoning: bool | None = None
    """Only true: thoughts are streamed as they come."""

    @property
    def offered(self) -> list[Tool]:
        """The tools that the prompt describes to the model."""
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.allowed_tools is not None:
            allowed = self.tool_choice.allowed_tools.names
            return [tool for tool in self.tools or [] if tool.function.name in allowed]
        return self.tools or []

    @property
    def characters(self) -> int:
        """Length of all text in messages and tools."""
        found = len(msgspec.json.encode(self.offered)) if self.offered else 0
        for message in self.messages:
            if isinstance(message.content, str):
                found += len(message.content)
            elif message.content is not None:
                found += sum(len(part.text) for part in message.content if isinstance(part, TextPart))
                found += sum(len(part.refusal) for part in message.content if isinstance(part, RefusalText))
            found += len(message.refusal or "") + len(message.thought or "")
            found += sum(len(call.function.arguments) for call in message.tool_calls or [])
        return found


class CompletionRequest(SamplingRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`. A prompt is text or token ids; a list of them is a batch."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0)] = 16
    """0, with `echo`: only the prompt, and its scores."""
    echo: bool = False
    suffix: Annotated[str, Meta(max_length=1_048_576)] | None = None
    """What stands behind the answer, for models with fill-in-the-middle tokens."""
    add_special_tokens: bool = True
    """Whether a prompt of text gets the tokenizer's special tokens."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | bool | None = None
    """How many likeliest tokens to report beside each token; true is 1, false: no scores."""

    @property
    def scores(self) -> int | None:
        """How many likeliest tokens to report beside each token; None: no scores."""
        if isinstance(self.logprobs, bool):
            return 1 if self.logprobs else None
        return self.logprobs


class EmbeddingRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`."""

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None
    """Without effect: fair shares and limits belong to API keys."""
    # beyond OpenAI
    priority: Priority = 0
    deadline_s: Deadline | None = None
    truncate: Truncate | None = None
    """Where inputs that are too long are cut; a language model cuts the end alone."""
    # of encoders alone
    input_type: str | None = None
    """What the inputs are for, as `query` or `document`: chooses the model's prompt."""
    prompt_name: str | None = None
    """Name of one of the model's prompts."""
    truncate_prompt_tokens: TruncateTokens | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Tokens that the prefix cache had, because an earlier request began with them."""


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the reasoning before the answer, over all choices."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A sampled token with its log-probability (natural logarithm)."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why an answer ended. `content_filter` comes from upstreams of other makers alone."""


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's turn."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | UnsetType = UNSET
    """The stop string, or the id of the `stop_token_ids`, that ended the answer; left out when something else did. The
    field is vLLM's, as is the next one."""
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    system_fingerprint: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a message that a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    obfuscation: str | UnsetType = UNSET
    """Padding of a chunk whose stream was asked for with `include_obfuscation`."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """In the first chunk, if the stream was asked for with `return_token_ids`."""
    system_fingerprint: str | None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or its next piece in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/completions`, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    obfuscation: str | UnsetType = UNSET
    """Padding of a chunk whose stream was asked for with `include_obfuscation`."""
    system_fingerprint: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One input's vector: a list of floats, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/embeddings`."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage
