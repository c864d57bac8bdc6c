"""The settings of a sequence engine, a section inside those of the text and the vision service."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import NonNegative, Positive, PositiveFloat, Section, says

ToolParser = Literal["auto", "hermes", "llama", "mistral", "mistral_list", "deepseek", "deepseek_fenced", "harmony"]
ReasoningParser = Literal["auto", "none", "think", "mistral"]


class SequenceEngineSettings(Section, frozen=True, kw_only=True):
    """How a sequence engine (text, vision) fills its steps and its memory."""

    device: Annotated[Literal["auto", "cpu", "cuda"], says("`auto` takes CUDA when there is any.")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], says("`auto`: bfloat16 on CUDA, float32 on a CPU.")
    ] = "auto"
    load: Annotated[
        Literal["weights", "dummy"],
        says("`dummy` takes random values of the model's shapes, and needs no weight file: for measuring speed."),
    ] = "weights"
    weights: Annotated[
        Literal["auto", "stored", "int8", "fp8", "int4", "mxfp4", "nvfp4"],
        says(
            "How linear layers are multiplied. `stored`: as they are. `int8`, `fp8`: weights and inputs in 8 bits. "
            "`int4`, `mxfp4`, `nvfp4`: weights in 4 bits; on a CPU `int4` keeps the numbers of a GGUF file's "
            "blocks. All but `int8` and `int4` are made for GPUs; a CPU computes them right and slowly. `auto`: `int8` "
            "where a CPU computes whole steps in it (AVX-512 VNNI, a decoder of Llama's kind) and the model is large, "
            "else `stored`."
        ),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "reference"],
        says("`auto`: Triton's on a GPU. `reference`: plain torch everywhere, to compare or to go round a fault."),
    ] = "auto"
    threads: Annotated[NonNegative, says("CPU threads of the engine. 0: all cores of the machine.")] = 0
    page_size: Annotated[
        Positive,
        says("Token slots in one page of KV cache; for whole steps on a CPU (see `weights`) a multiple of 16."),
    ] = 16
    kv_cache_bytes: Annotated[Positive, says("Memory for KV pages.")] = 512 * 1024 * 1024
    kv_cache_dtype: Annotated[
        Literal["auto", "computed", "int8", "fp8"],
        says(
            "What keys and values are kept as. `computed`: in the type of the arithmetic. `int8` and `fp8` hold two to "
            "four times as many, and round more. `auto`: float16 where a CPU computes whole steps (see `weights`), "
            "which is a quarter faster with many streams, else `computed`."
        ),
    ] = "auto"
    host_cache_bytes: Annotated[
        NonNegative, says("Memory on the host for KV pages of known prefixes that had to leave the device. 0: none.")
    ] = 0
    fuse_projections: Annotated[
        bool, says("Whether layers that read the same input (q, k, v; gate, up) are computed at once.")
    ] = True
    graphs: Annotated[
        Literal["auto", "off"],
        says(
            "Whether steps that decode only are CUDA graphs: captured at the start for numbers of sequences up to "
            "`max_running`, then one launch each. `auto`: on a GPU, where the model allows it; the log says so. "
            "`off`: one launch for each kernel, and no memory for graphs."
        ),
    ] = "auto"
    overlap: Annotated[
        Literal["auto", "on", "off"],
        says(
            "Whether the next step is prepared and queued before the tokens of this one are read; changes no answer. "
            "`auto`: on a GPU, which would wait for the host otherwise. Not together with `speculation`."
        ),
    ] = "auto"
    speculation: Annotated[
        Literal["off", "ngram", "draft"],
        says(
            "Guess next tokens, of which one step confirms several; changes no answer. `ngram`: from what the request "
            "has. `draft`: by the model `draft_model`."
        ),
    ] = "off"
    draft_model: Annotated[str, says("A smaller model with the same tokens; named as `model` is.")] = ""
    draft_cache_bytes: Annotated[Positive, says("Memory for the draft model's KV pages.")] = 128 * 1024 * 1024
    speculation_tokens: Annotated[Positive, says("Most tokens guessed for one request in one step.")] = 8
    grammar_backend: Annotated[
        Literal["auto", "xgrammar", "llguidance"],
        says("What compiles grammars. `auto`: xgrammar where it is installed (the extra `gpu`), else llguidance."),
    ] = "auto"
    grammar_timeout_s: Annotated[PositiveFloat, says("Seconds that compiling a request's grammar may take.")] = 10.0
    prefix_cache: Annotated[
        Literal["off", "shared", "tenant"],
        says("Who shares the KV pages of equal beginnings: nobody, all requests, or those of one API key."),
    ] = "shared"
    max_batch_tokens: Annotated[Positive, says("Token budget of one step, prefill chunks and decodes together.")] = 512
    max_running: Annotated[Positive, says("Requests that may hold pages at once.")] = 32
    max_waiting: Annotated[Positive, says("Requests that may queue; more are answered 429 with Retry-After.")] = 256
