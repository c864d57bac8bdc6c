"""Benchmark cases of `kv_store`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tessera_kernels.bench.cases import BenchCase
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B
from tessera_kernels.kv_store import reference
from tessera_kernels.kv_store.cost import cost
from tessera_kernels.storage.paged_kv import PagedKV, dequantize

Arguments = tuple[torch.Tensor, torch.Tensor, PagedKV, torch.Tensor]
BOUND = {torch.bfloat16: 0.0, torch.float32: 0.0, torch.int8: 2e-3, torch.float8_e4m3fn: 1e-2}
"""Bound on the relative RMS error, by dtype of the cache. A value halfway between two quantized values may be rounded
either way, because the kernel and the reference do not divide in the same way."""


def cases() -> Iterator[BenchCase]:
    """Tokens of a decode step and of a prefill, stored as they are and quantized; tiny shapes."""
    for model in (LLAMA_3_8B, QWEN3_30B_A3B):
        for tokens in (64, 8192):
            for stored in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
                name = f"{model.name} {tokens} tokens bf16 to {str(stored).removeprefix('torch.')}"
                yield _case(name, tokens, model.kv_heads, model.head_dim, torch.bfloat16, stored)
    for stored in (torch.float32, torch.int8, torch.float8_e4m3fn):
        yield _case(f"tiny {str(stored).removeprefix('torch.')}", 5, 3, 24, torch.float32, stored, tiny=True)


def _case(
    name: str, tokens: int, heads: int, dim: int, dtype: torch.dtype, stored: torch.dtype, *, tiny: bool = False
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, tokens, heads, dim, dtype, stored),
        run=_launch,
        exact=_exact,
        bound=BOUND[stored],
        cost=cost(tokens, heads, (dim, dim), dtype, stored),
        tiny=tiny,
        goal=0.85 if tokens >= 8192 else None,
    )


def _make_inputs(
    tokens: int, heads: int, dim: int, dtype: torch.dtype, stored: torch.dtype, device: torch.device
) -> Arguments:
    key, value = (torch.randn(tokens, heads, dim, device=device).to(dtype) for _ in range(2))
    pages = tokens // 16 + 2
    cache = PagedKV.zeros(pages, 16, heads, (dim, dim), dtype=stored, device=device)
    return key, value, cache, torch.randperm(pages * 16, device=device)[:tokens]


def _launch(key: torch.Tensor, value: torch.Tensor, cache: PagedKV, slots: torch.Tensor) -> list[torch.Tensor]:
    from tessera_kernels.kv_store import triton  # noqa: PLC0415 - Triton is needed to run alone

    triton.kv_store(key, value, cache, slots)
    return _values(cache)


def _exact(key: torch.Tensor, value: torch.Tensor, cache: PagedKV, slots: torch.Tensor) -> list[torch.Tensor]:
    reference.kv_store(key, value, cache, slots)
    return _values(cache)


def _values(cache: PagedKV) -> list[torch.Tensor]:
    if cache.key_scale_PSH is None or cache.key_PSHD.shape[0] > 64:
        # Large cases are timed, so nothing is dequantized; one-byte elements are compared as int8.
        return [tensor.view(torch.int8) if tensor.dtype.itemsize == 1 else tensor for tensor in cache.tensors]
    return [
        dequantize(cache.key_PSHD, cache.key_scale_PSH, torch.float32),
        dequantize(cache.value_PSHE, cache.value_scale_PSH, torch.float32),
    ]
