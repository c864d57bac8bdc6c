"""Benchmark cases of `combine`, the sum of the outputs of experts; products of experts are cases of `grouped_gemm`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tessera_kernels.bench.cases import BenchCase
from tessera_kernels.bench.shapes import QWEN3_30B_A3B
from tessera_kernels.moe import reference
from tessera_kernels.moe.cost import combine_cost

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


def cases() -> Iterator[BenchCase]:
    """The sizes of Qwen3, and tiny sums in both dtypes."""
    model = QWEN3_30B_A3B
    for tokens in (64, 8192):
        name = f"{model.name} combine {tokens} tokens bf16"
        yield _case(name, (tokens, model.chosen, model.hidden, model.experts), torch.bfloat16)
    for dtype in BOUNDS:
        yield _case(f"tiny {str(dtype).removeprefix('torch.')}", (5, 3, 70, 4), dtype, tiny=True)


def _case(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype, *, tiny: bool = False) -> BenchCase:
    experts = shape[3]

    def run(outer_AD: torch.Tensor, experts_TC: torch.Tensor, weights_TC: torch.Tensor) -> torch.Tensor:
        from tessera_kernels.moe import triton  # noqa: PLC0415 - Triton is needed to run alone

        return triton.combine(outer_AD, experts_TC, weights_TC, experts)

    return BenchCase(
        name=name,
        make=partial(_make_inputs, shape, dtype),
        run=run,
        exact=partial(reference.combine, experts=experts),
        bound=BOUNDS[dtype],
        cost=combine_cost(*shape[:3], dtype),
        tiny=tiny,
    )


def _make_inputs(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, chosen, features, experts = shape
    outer_AD = torch.randn(tokens * chosen, features, device=device).to(dtype)
    experts_TC = torch.randint(0, experts, (tokens, chosen), device=device, dtype=torch.int32)
    return outer_AD, experts_TC, torch.rand(tokens, chosen, device=device)
