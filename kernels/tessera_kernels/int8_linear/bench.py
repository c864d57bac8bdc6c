"""Bench cases of `int8_linear`: a layer with a few outlier columns, as `tessera.models` makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial

import torch

from tessera_kernels.bench.cases import BenchCase
from tessera_kernels.bench.shapes import LLAMA_3_8B
from tessera_kernels.int8_linear import Int8Weight, quantize_weight, reference
from tessera_kernels.int8_linear.cost import cost

COLUMNS = 8
"""Outlier columns of each case."""
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 1e-2}


def cases() -> Iterator[BenchCase]:
    """One layer in a decode step and in a prefill; tiny cases for both dtypes."""
    for tokens in (64, 8192):
        name = f"Llama-3-8B gate and up {tokens} tokens, {COLUMNS} columns in float"
        yield _case(name, tokens, (2 * LLAMA_3_8B.inner, LLAMA_3_8B.hidden), torch.bfloat16)
    for dtype in BOUNDS:
        yield _case(f"tiny {str(dtype).removeprefix('torch.')}", 20, (70, 200), dtype, tiny=True)


def _case(name: str, tokens: int, shape: tuple[int, int], dtype: torch.dtype, *, tiny: bool = False) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, tokens, shape, dtype),
        run=_launch,
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(tokens, *shape, dtype),
        tiny=tiny,
    )


def _make_inputs(
    tokens: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, Int8Weight]:
    x_TK = torch.randn(tokens, shape[1], device=device).to(dtype)
    outlier_columns_M = torch.arange(COLUMNS) * 7
    weight = quantize_weight(torch.randn(shape) / 64, outlier_columns_M, torch.rand(shape[1]))
    # Moving to a device keeps strides, and with them the transposed view.
    return x_TK, Int8Weight(**{field.name: getattr(weight, field.name).to(device) for field in fields(weight)})


def _launch(x_TK: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    from tessera_kernels.int8_linear import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.int8_linear(x_TK, weight, None)


def _exact(x_TK: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    # CUDA's integer product refuses few tokens and sizes that are no multiples of 8, which the CPU's takes.
    if len(x_TK) > 16 and not any(size % 8 for size in weight.weight_KN.shape):
        return reference.int8_linear(x_TK, weight, None)
    return reference.int8_linear(x_TK.cpu(), Int8Weight(**_on_cpu(weight)), None).to(x_TK.device)


def _on_cpu(weight: Int8Weight) -> dict[str, torch.Tensor]:
    return {field.name: getattr(weight, field.name).cpu() for field in fields(weight)}
