"""Benchmark cases of `gated_activation`: feed-forward layers of language models, plain and quantized."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B
from tessera_kernels.gated_activation import reference
from tessera_kernels.gated_activation.cost import cost

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.int8: 1.5e-2, torch.float8_e4m3fn: 5e-2}
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
QUANTIZED = (torch.int8, torch.float8_e4m3fn)
BF16 = torch.bfloat16
TUNED_WIDTHS = (768, 14336)
GOAL, MANY = 0.85, 8192
"""Fraction of the roofline to reach, and the number of rows from which a case has this goal."""


def cases() -> Iterator[BenchCase]:
    """Feed-forward layers with few rows and many, plain and quantized; an expert's layer with all assigned rows."""
    llama, qwen = LLAMA_3_8B, QWEN3_30B_A3B
    for rows in (64, 8192):
        for made in (None, *QUANTIZED):
            yield _case(f"{llama.name} SwiGLU {rows} rows bf16{_to(made)}", rows, llama.inner, BF16, "silu", made)
    rows = qwen.tokens * qwen.chosen
    yield _case(f"{qwen.name} SwiGLU {rows} rows bf16", rows, qwen.inner, BF16, "silu", None)
    yield _case("GeGLU 8192 rows of 14336 bf16", 8192, llama.inner, BF16, "gelu", None)
    for dtype in (torch.float32, BF16):
        for activation in reference.ACTIVATIONS:
            for made in (None, *QUANTIZED):
                yield _case(f"tiny {activation} {SHORT[dtype]}{_to(made)}", 3, 70, dtype, activation, made, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Features of a block and warps; only warps if whole rows are quantized."""
    from tessera_kernels.gated_activation.triton import bucket, candidates  # noqa: PLC0415 - Triton is needed here alone

    for inner in TUNED_WIDTHS:
        for rows in (64, 16384):
            for made in (None, torch.int8):
                name = bucket(inner, rows, quantized=made is not None)
                make = partial(_make_inputs, rows, inner, BF16, "silu", made)
                configs = candidates(inner, quantized=made is not None)
                if len(configs) > 1:
                    yield TuningChoice("bfloat16", name, make, _launch_with, configs)


def _case(
    name: str,
    rows: int,
    inner: int,
    dtype: torch.dtype,
    activation: str,
    quantized: torch.dtype | None,
    *,
    tiny: bool = False,
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, rows, inner, dtype, activation, quantized),
        run=partial(_launch_with, None),
        exact=_exact,
        bound=BOUNDS[quantized or dtype],
        cost=cost(rows, inner, dtype, quantized=quantized),
        tiny=tiny,
        goal=GOAL if rows >= MANY else None,
    )


def _make_inputs(
    rows: int, inner: int, dtype: torch.dtype, activation: str, quantized: torch.dtype | None, device: torch.device
) -> tuple[Any, ...]:
    return torch.randn(rows, 2 * inner, device=device).to(dtype), activation, quantized


def _launch_with(
    config: LaunchConfig | None, packed_TJ: torch.Tensor, activation: str, quantized: torch.dtype | None
) -> list[torch.Tensor]:
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - Triton is needed to run alone

    rows, both = packed_TJ.shape
    out = torch.empty(rows, both // 2, dtype=quantized or packed_TJ.dtype, device=packed_TJ.device)
    scale = torch.empty(rows, dtype=torch.float32, device=packed_TJ.device) if quantized else None
    triton.gated_activation(packed_TJ, activation, out_TI=out, scale_T=scale, configuration=config)
    return [out] if scale is None else [out, scale]


def _exact(packed_TJ: torch.Tensor, activation: str, quantized: torch.dtype | None) -> list[torch.Tensor]:
    if quantized is None:
        return [reference.gated_activation(packed_TJ, activation)]
    return list(reference.gated_activation_quantized(packed_TJ, quantized, activation))


def _to(quantized: torch.dtype | None) -> str:
    return f" to {SHORT[quantized]}" if quantized else ""
