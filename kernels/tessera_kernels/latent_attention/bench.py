"""Benchmark cases of `latent_attention`: decoding with the heads of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.latent_attention import reference
from tessera_kernels.latent_attention.cost import cost
from tessera_kernels.paged_attention.ragged import Ragged

PAGE, RANK, ROPE = 16, 512, 64
Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Ragged]


def cases() -> Iterator[BenchCase]:
    """All heads of DeepSeek-V3, and the share of one of eight GPUs; many decoding sequences and a long one."""
    for heads in (128, 16):
        yield _case(f"DeepSeek-V3 {heads} heads decode 64 of 4096 bf16", [(4096, 1)] * 64, heads, torch.bfloat16)
        yield _case(f"DeepSeek-V3 {heads} heads decode 1 of 32768 bf16", [(32768, 1)], heads, torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        yield _case(f"tiny {kind}", [(40, 1), (9, 3)], 5, dtype, rank=32, rope=8, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Heads of a tile, positions of a block, warps and stages for both head counts."""
    for heads in (128, 16):
        configs = [
            {"BLOCK_M": rows, "BLOCK_N": positions, "num_warps": warps, "num_stages": stages}
            for rows in ((16, 32, 64) if heads == 128 else (16,))
            for positions in (16, 32, 64)
            for warps in (4, 8)
            for stages in (1, 2, 3)
        ]
        make = partial(_make_inputs, [(4096, 1)] * 64, heads, torch.bfloat16, RANK, ROPE)
        yield TuningChoice("bfloat16", f"H{min(heads, 64)} R{RANK}", make, _launch_with, configs)


def _case(
    name: str,
    sequences: Sequence[tuple[int, int]],
    heads: int,
    dtype: torch.dtype,
    *,
    rank: int = RANK,
    rope: int = ROPE,
    tiny: bool = False,
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, sequences, heads, dtype, rank, rope),
        run=_launch,
        exact=_exact,
        bound=1e-5 if dtype == torch.float32 else 8e-3,
        cost=cost(sequences, heads, rank, rope, dtype),
        tiny=tiny,
        goal=0.85 if heads == 16 and len(sequences) > 1 else None,
    )


def _make_inputs(
    sequences: Sequence[tuple[int, int]], heads: int, dtype: torch.dtype, rank: int, rope: int, device: torch.device
) -> Arguments:
    pages = [-(-context // PAGE) for context, _ in sequences]
    table = torch.zeros(len(sequences), max(pages), dtype=torch.int32)
    first = 0
    for row, count in enumerate(pages):
        table[row, :count] = torch.arange(first, first + count)
        first += count
    counts = [count for _, count in sequences]
    query, rotated = (torch.randn(sum(counts), heads, dim, device=device).to(dtype) for dim in (rank, rope))
    cache = torch.randn(first, PAGE, rank + rope, device=device).to(dtype)
    context = torch.tensor([context for context, _ in sequences], device=device)
    return query, rotated, cache, Ragged(table.to(device), context, counts)


def _launch(
    query: torch.Tensor,
    rotated: torch.Tensor,
    cache: torch.Tensor,
    ragged: Ragged,
    configuration: LaunchConfig | None = None,
) -> torch.Tensor:
    from tessera_kernels.latent_attention import triton  # noqa: PLC0415 - Triton is needed to run alone

    scaling = (128 + rotated.shape[2]) ** -0.5
    return triton.latent_attention(query, rotated, cache, ragged, scaling=scaling, configuration=configuration)


def _launch_with(
    config: LaunchConfig, query: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, ragged: Ragged
) -> torch.Tensor:
    return _launch(query, rotated, cache, ragged, config)


def _exact(query: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, ragged: Ragged) -> torch.Tensor:
    scaling = (128 + rotated.shape[2]) ** -0.5
    return reference.latent_attention(query.float(), rotated.float(), cache.float(), ragged, scaling=scaling)
