"""The settings of a sequence engine, a section inside those of the text and the vision service."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import DEVICE, THREADS, NonNegative, Positive, PositiveFloat, Section, described

ToolParser = Literal["auto", "hermes", "llama", "mistral", "mistral_list", "deepseek", "deepseek_fenced", "harmony"]
ReasoningParser = Literal["auto", "none", "think", "mistral"]
MaxTokensPolicy = Literal["clamp", "refuse"]
TOOL_PARSER = described("Format in which the model writes tool calls. `auto` takes it from the chat template.")
REASONING_PARSER = described("Format in which the model writes its reasoning. `auto` takes it from the chat template.")
MAX_TOKENS_POLICY = described(
    "What becomes of a request whose `max_tokens` is above `max_output_tokens`, or above what its prompt leaves of the "
    "context. `clamp`: it gets as many as there can be, and an answer that is cut says `length`. `refuse`: status 400."
)
REQUEST_CHAT_TEMPLATES = described(
    "Whether requests may bring a Jinja template in `chat_template`. Each is compiled and rendered in a process of its "
    "own with bounds of time and memory, which costs the machine a fraction of a second."
)


class SequenceEngineSettings(Section, frozen=True, kw_only=True):
    """The sequence engine (text, vision): its device, its weights, its steps and its memory."""

    device: Annotated[Literal["auto", "cpu", "cuda"], DEVICE] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        described("Type of the arithmetic. `auto`: bfloat16 on CUDA, float32 on a CPU."),
    ] = "auto"
    load: Annotated[
        Literal["weights", "dummy"],
        described(
            "Source of the weights. `weights`: the files of the model. `dummy`: random values of the model's shapes, "
            "which need no file, for measuring speed."
        ),
    ] = "weights"
    weights: Annotated[
        Literal["auto", "stored", "int8", "fp8", "int4", "mxfp4", "nvfp4"],
        described(
            "Scheme by which linear layers are multiplied. `stored`: as the files have it. `int8`, `fp8`: weights and "
            "inputs in 8 bits. `int4`, `mxfp4`, `nvfp4`: weights in 4 bits; on a CPU `int4` keeps the blocks of a GGUF "
            "file as they are. All but `int8` and `int4` are made for GPUs; a CPU computes them correctly and slowly. "
            "`auto`: `int8` where a CPU computes whole steps in it (AVX-512 VNNI, a decoder of Llama's kind) and the "
            "model is large, else `stored`."
        ),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "reference"],
        described(
            "Kernels that compute. `auto`: Triton's on a GPU. `reference`: plain torch everywhere, to compare results "
            "or to work around a fault."
        ),
    ] = "auto"
    threads: Annotated[NonNegative, THREADS] = 0
    page_size: Annotated[
        Positive,
        described(
            "Token slots in one page of KV cache. A CPU that computes whole steps (see `weights`) needs a multiple of "
            "16."
        ),
    ] = 16
    kv_cache_bytes: Annotated[Positive, described("Memory for KV pages on the device, in bytes.")] = 512 * 1024 * 1024
    kv_cache_dtype: Annotated[
        Literal["auto", "computed", "int8", "fp8"],
        described(
            "Type in which keys and values are kept. `computed`: the type of the arithmetic. `int8`, `fp8`: two to "
            "four times as many fit, with a larger quantization error. `auto`: float16 where a CPU computes whole "
            "steps (see `weights`), which is a quarter faster with many streams, else `computed`."
        ),
    ] = "auto"
    host_cache_bytes: Annotated[
        NonNegative,
        described("Host memory for KV pages of cached prefixes that were evicted from the device, in bytes. 0: none."),
    ] = 0
    fuse_projections: Annotated[
        bool,
        described("Whether projections that read the same input (q, k, v; gate, up) are computed as one product."),
    ] = True
    graphs: Annotated[
        Literal["auto", "off"],
        described(
            "Whether steps that only decode run as CUDA graphs, captured at the start for batches of up to "
            "`max_running` sequences and launched once per step. `auto`: on a GPU, where the model allows it; the log "
            "says so. `off`: one launch per kernel, and no memory for graphs."
        ),
    ] = "auto"
    overlap: Annotated[
        Literal["auto", "on", "off"],
        described(
            "Whether the next step is prepared and queued before the tokens of the current one are read; answers stay "
            "the same. `auto`: on a GPU, which would wait for the host otherwise. Excludes `speculation`."
        ),
    ] = "auto"
    speculation: Annotated[
        Literal["off", "ngram", "draft"],
        described(
            "Speculative decoding: draft tokens are proposed and one step verifies several of them; answers stay the "
            "same. `ngram`: drafts come from the request's own tokens. `draft`: from the model `draft_model`."
        ),
    ] = "off"
    draft_model: Annotated[
        str, described("Smaller model with the same vocabulary that proposes draft tokens; named as `model` is.")
    ] = ""
    draft_cache_bytes: Annotated[Positive, described("Memory for the draft model's KV pages, in bytes.")] = (
        128 * 1024 * 1024
    )
    speculation_tokens: Annotated[Positive, described("Most draft tokens of one request in one step.")] = 8
    grammar_backend: Annotated[
        Literal["auto", "xgrammar", "llguidance"],
        described(
            "Library that compiles grammars. `auto`: xgrammar where it is installed (the extra `gpu`), else llguidance."
        ),
    ] = "auto"
    grammar_timeout_s: Annotated[
        PositiveFloat, described("Seconds that compiling the grammar of one request may take.")
    ] = 10.0
    prefix_cache: Annotated[
        Literal["off", "shared", "tenant"],
        described(
            "Which requests share the KV pages of equal prefixes. `off`: none. `shared`: all. `tenant`: those of one "
            "API key."
        ),
    ] = "shared"
    max_batch_tokens: Annotated[
        Positive, described("Most tokens of one step, prefill chunks and decodes together.")
    ] = 512
    max_running: Annotated[Positive, described("Most requests that hold pages at the same time.")] = 32
    max_waiting: Annotated[
        Positive, described("Most requests in the queue. Further ones are answered 429 with Retry-After.")
    ] = 256
