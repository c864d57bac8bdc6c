"""Benchmark cases and tuning choices of `paged_attention`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B, ModelShape
from tessera_kernels.paged_attention import Ragged, reference
from tessera_kernels.paged_attention.cost import cost
from tessera_kernels.storage.paged_kv import LARGEST, PagedKV, dequantize, quantize

PAGE = 16
BOUNDS = {torch.float32: 1e-5, torch.float16: 1.5e-3, torch.bfloat16: 8e-3}
QUANTIZED = tuple(LARGEST)
DECODE = {"decode 64 of 4096": [(4096, 1)] * 64, "decode 1 of 32768": [(32768, 1)]}
Sequences = Sequence[tuple[int, int]]
"""Context and query rows of each sequence of a batch."""


def cases() -> Iterator[BenchCase]:
    """Decodes, one long decode, prefill, prefill with decodes, a window with sinks; int8 and float8 caches."""
    bf16 = torch.bfloat16
    for model in (LLAMA_3_8B, QWEN3_30B_A3B):
        for what, sequences in DECODE.items():
            goal = 0.85 if len(sequences) > 1 else None
            peers = {"SDPA": _sdpa} if len(sequences) > 1 else {}
            yield _case(f"{model.name} {what} bf16", model, sequences, bf16, goal=goal, peers=peers)
            for stored in QUANTIZED:
                yield _case(f"{model.name} {what} bf16 of {_short(stored)}", model, sequences, bf16, stored, goal=goal)
        prefill = [(model.tokens, model.tokens)]
        name = f"{model.name} prefill {model.tokens} bf16"
        yield _case(name, model, prefill, bf16, goal=0.65, peers={"SDPA": _sdpa})
        mixed = [(2048, 2048), *[(4096, 1)] * 63]
        yield _case(f"{model.name} prefill 2048 with 63 decodes of 4096 bf16", model, mixed, bf16)
    window: dict[str, Any] = {"sliding_window": 128, "sinks": True}
    yield _case(
        "Llama-3-8B decode 64 of 4096 bf16, window 128, sinks", LLAMA_3_8B, DECODE["decode 64 of 4096"], bf16, **window
    )
    small = ModelShape("tiny", 0, 0, 4, 2, 16)
    variants: tuple[dict[str, Any], ...] = ({}, {"sliding_window": 9, "sinks": True}, {"softcap": 5.0})
    for kind in (torch.float32, *QUANTIZED):
        for options in variants:
            name = f"tiny {_short(kind)} {' '.join(options)}".rstrip()
            yield _case(name, small, [(40, 1), (20, 7)], torch.float32, kind, tiny=True, **options)


def choices() -> Iterator[TuningChoice]:
    """Positions of a block, warps and stages, for decodes and prefill of the models' head dim."""
    from tessera_kernels.paged_attention.triton import bucket  # noqa: PLC0415 - Triton is needed for buckets alone

    for rows, sequences in ((16, DECODE["decode 64 of 4096"]), (128, [(8192, 8192)])):
        for stored in (torch.bfloat16, *QUANTIZED):
            configs = [
                {"BLOCK_N": positions, "num_warps": warps, "num_stages": stages}
                for positions in (32, 64, 128)
                for warps in ((2, 4, 8) if rows == 16 else (4, 8))
                for stages in (2, 3, 4)
            ]
            make = partial(_make_inputs, LLAMA_3_8B, sequences, torch.bfloat16, stored, {})
            yield TuningChoice("bfloat16", bucket(rows, 128, stored), make, _launch_with, configs)


def _case(
    name: str,
    model: ModelShape,
    sequences: Sequences,
    dtype: torch.dtype,
    stored: torch.dtype | None = None,
    *,
    goal: float | None = None,
    peers: dict[str, Callable[..., Any]] | None = None,
    tiny: bool = False,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> BenchCase:
    options = {"sliding_window": sliding_window, "softcap": softcap, "sinks": sinks}
    dims = (model.head_dim, model.head_dim)
    heads = (model.heads, model.kv_heads)
    return BenchCase(
        name=name,
        make=partial(_make_inputs, model, sequences, dtype, stored or dtype, options),
        run=_launch,
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(sequences, heads, dims, dtype, stored or dtype, sliding_window=sliding_window),
        peers=peers or {},
        tiny=tiny,
        goal=goal,
    )


def _make_inputs(
    model: ModelShape,
    sequences: Sequences,
    dtype: torch.dtype,
    stored: torch.dtype,
    wanted: dict[str, Any],
    device: torch.device,
) -> tuple[torch.Tensor, PagedKV, Ragged, dict[str, Any]]:
    pages = [-(-context // PAGE) for context, _ in sequences]
    table = torch.zeros(len(sequences), max(pages), dtype=torch.int32)
    first = 0
    for row, count in enumerate(pages):
        table[row, :count] = torch.arange(first, first + count)
        first += count
    shape = (first * PAGE, model.kv_heads, model.head_dim)
    stored_values = [torch.randn(shape, device=device).to(dtype) for _ in range(2)]
    paged = (first, PAGE, *shape[1:])
    if stored in LARGEST:
        (key, key_scale), (value, value_scale) = (quantize(x, stored) for x in stored_values)
        cache = PagedKV(key.view(paged), value.view(paged), key_scale.view(paged[:3]), value_scale.view(paged[:3]))
    else:
        cache = PagedKV(stored_values[0].view(paged), stored_values[1].view(paged))
    counts = [count for _, count in sequences]
    query = torch.randn(sum(counts), model.heads, model.head_dim, device=device).to(dtype)
    context = torch.tensor([context for context, _ in sequences], device=device)
    options = {
        "scaling": model.head_dim**-0.5,
        "sliding_window": wanted.get("sliding_window"),
        "softcap": wanted.get("softcap"),
        "sinks_Q": torch.randn(model.heads, device=device).to(dtype) if wanted.get("sinks") else None,
    }
    return query, cache, Ragged(table.to(device), context, counts), options


def _launch(
    query: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    options: dict[str, Any],
    configuration: LaunchConfig | None = None,
) -> torch.Tensor:
    from tessera_kernels.paged_attention import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.paged_attention(
        query,
        cache,
        ragged.page_table_BM,
        ragged.context_B,
        ragged.query_counts,
        configuration=configuration,
        **options,
    )


def _launch_with(
    config: LaunchConfig, query: torch.Tensor, cache: PagedKV, ragged: Ragged, options: dict[str, Any]
) -> torch.Tensor:
    return _launch(query, cache, ragged, options, config)


def _exact(query: torch.Tensor, cache: PagedKV, ragged: Ragged, options: dict[str, Any]) -> torch.Tensor:
    exact = PagedKV(
        dequantize(cache.key_PSHD, cache.key_scale_PSH, torch.float32),
        dequantize(cache.value_PSHE, cache.value_scale_PSH, torch.float32),
    )
    return reference.paged_attention(query.float(), exact, ragged, **options)


def _sdpa(query: torch.Tensor, cache: PagedKV, ragged: Ragged, options: dict[str, Any]) -> torch.Tensor:
    # The cases with this peer have sequences of equal length, whose pages are in order.
    batch, count = len(ragged.query_counts), ragged.query_counts[0]
    key, value = (x.view(batch, -1, *x.shape[2:]).transpose(1, 2) for x in (cache.key_PSHD, cache.value_PSHE))
    queries = query.view(batch, count, *query.shape[1:]).transpose(1, 2)
    scaling: float = options["scaling"]
    return scaled_dot_product_attention(queries, key, value, is_causal=count > 1, scale=scaling, enable_gqa=True)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}[dtype]
