"""Benchmark cases of `rms_norm` and its variants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B, WAN_14B
from tessera_kernels.rms_norm import reference
from tessera_kernels.rms_norm.cost import cost

EPSILON = 1e-6
BF16 = torch.bfloat16
TUNED_WIDTHS = (128, 2048, 4096, 5120)
GOAL, MANY = 0.85, 8192
"""Fraction of the roofline to reach, and the number of rows from which a case has this goal."""
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.int8: 1.5e-2, torch.float8_e4m3fn: 5e-2}


def cases() -> Iterator[BenchCase]:
    """Each variant at the widths of language models, normalization of heads, and the width of the video model."""
    for model in (LLAMA_3_8B, QWEN3_30B_A3B):
        for rows in (64, 8192):
            yield _case(f"{model.name} {rows} rows bf16", rows, model.hidden, BF16)
            yield _case(f"{model.name} {rows} rows bf16 + residual", rows, model.hidden, BF16, residual=True)
            for quantized in (torch.int8, torch.float8_e4m3fn):
                name = f"{model.name} {rows} rows bf16 + residual to {_short(quantized)}"
                yield _case(name, rows, model.hidden, BF16, residual=True, quantized=quantized)
    heads = QWEN3_30B_A3B.heads * QWEN3_30B_A3B.tokens
    yield _case("Qwen3-30B-A3B heads of 8192 tokens bf16", heads, QWEN3_30B_A3B.head_dim, BF16)
    yield _case(f"Wan-14B {WAN_14B.tokens} rows bf16", WAN_14B.tokens, WAN_14B.hidden, BF16)
    for dtype in (torch.float32, BF16):
        for residual in (False, True):
            for made in (None, torch.int8, torch.float8_e4m3fn):
                name = f"tiny {_short(dtype)}{' + residual' if residual else ''}{f' to {_short(made)}' if made else ''}"
                yield _case(name, 5, 70, dtype, residual=residual, quantized=made, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Rows and warps of a program, for the widths of models."""
    from tessera_kernels.rms_norm.triton import bucket, candidates  # noqa: PLC0415 - Triton is needed for tuning alone

    for width in TUNED_WIDTHS:
        for rows in (64, 16384):
            make = partial(_make_inputs, rows, width, BF16, None)
            configs = candidates(width)
            if len(configs) > 1:
                yield TuningChoice("bfloat16", bucket(width, rows), make, _launch_with, configs)


def _case(
    name: str,
    rows: int,
    width: int,
    dtype: torch.dtype,
    *,
    residual: bool = False,
    quantized: torch.dtype | None = None,
    tiny: bool = False,
) -> BenchCase:
    plain = not residual and quantized is None
    return BenchCase(
        name=name,
        make=partial(_make_inputs, rows, width, dtype, quantized, residual=residual),
        run=_launch,
        exact=_exact,
        bound=BOUNDS[quantized or dtype],
        cost=cost(rows, width, dtype, residual=residual, quantized=quantized),
        peers={"torch rms_norm": _torch} if plain else {},
        tiny=tiny,
        goal=GOAL if rows >= MANY else None,
    )


def _make_inputs(
    rows: int,
    width: int,
    dtype: torch.dtype,
    quantized: torch.dtype | None,
    device: torch.device,
    *,
    residual: bool = False,
) -> tuple[Any, ...]:
    x_TK = torch.randn(rows, width, device=device).to(dtype)
    residual_TK = torch.randn(rows, width, device=device).to(dtype) if residual else None
    return x_TK, residual_TK, torch.randn(width, device=device).to(dtype), quantized


def _launch(
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor | None,
    weight_K: torch.Tensor,
    quantized: torch.dtype | None,
    configuration: LaunchConfig | None = None,
) -> list[torch.Tensor]:
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415 - Triton is needed to run alone

    out = torch.empty(x_TK.shape, dtype=quantized or x_TK.dtype, device=x_TK.device)
    scale = torch.empty(x_TK.shape[:1], dtype=torch.float32, device=x_TK.device) if quantized else None
    triton.rms_norm(
        x_TK, weight_K, EPSILON, 0.0, residual_TK=residual_TK, out_TK=out, scale_T=scale, configuration=configuration
    )
    return [out, *([] if scale is None else [scale]), *([] if residual_TK is None else [residual_TK])]


def _launch_with(
    config: LaunchConfig,
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor | None,
    weight_K: torch.Tensor,
    quantized: torch.dtype | None,
) -> list[torch.Tensor]:
    return _launch(x_TK, residual_TK, weight_K, quantized, config)


def _exact(
    x_TK: torch.Tensor, residual_TK: torch.Tensor | None, weight_K: torch.Tensor, quantized: torch.dtype | None
) -> list[torch.Tensor]:
    summed_TK = x_TK if residual_TK is None else residual_TK.add_(x_TK)
    written = [] if residual_TK is None else [residual_TK]
    if quantized is not None:
        return [*reference.rms_norm_quantized(summed_TK, weight_K, EPSILON, 0.0, quantized), *written]
    return [reference.rms_norm(summed_TK, weight_K, EPSILON, 0.0), *written]


def _torch(x_TK: torch.Tensor, _residual_TK: None, weight_K: torch.Tensor, _quantized: None) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x_TK, weight_K.shape, weight_K, EPSILON)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}[dtype]
