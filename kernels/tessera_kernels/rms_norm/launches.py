"""All launches of `rms_norm` and its variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tessera_kernels.gate.launch import Launch
from tessera_kernels.rms_norm.bench import TUNED_WIDTHS

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
WIDTHS = (128, 2048, 4096, 5120, 16384)
"""Features of a head, of Qwen3-30B-A3B, Llama-3-8B and Wan 14B, and the widest row."""


def launches() -> Iterator[Launch]:
    """Every variant at every width, for few rows and many; configurations to tune; other dtypes at one width."""
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415 - Triton is needed for launches alone

    for width in WIDTHS:
        for rows in (1, 64, 65536):
            yield _launch(width, rows, torch.bfloat16, residual=False, quantized="")
            yield _launch(width, rows, torch.bfloat16, residual=True, quantized="")
        for quantized in ("i8", "fp8e4nv"):
            yield _launch(width, 65536, torch.bfloat16, residual=True, quantized=quantized)
    for width in TUNED_WIDTHS:
        for how in triton.candidates(width):
            yield _launch(width, 65536, torch.bfloat16, residual=True, quantized="i8", configuration=how)
    for dtype in (torch.float16, torch.float32):
        yield _launch(4096, 64, dtype, residual=True, quantized="")
        yield _launch(4096, 64, dtype, residual=False, quantized="i8")


def _launch(
    width: int,
    rows: int,
    dtype: torch.dtype,
    *,
    residual: bool,
    quantized: str,
    configuration: Mapping[str, int] | None = None,
) -> Launch:
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415

    how = configuration or triton.config(width, rows, dtype)
    kind = TYPES[dtype]
    variant = f"{kind}{' + residual' if residual else ''}{f' to {quantized}' if quantized else ''}"
    size = f"T{rows}" if configuration is None else f"{how['BLOCK_T']} rows {how['num_warps']} warps"
    return Launch(
        name=f"{variant} K{width} {size}",
        kernel=triton.rms_norm_kernel,
        signature={
            **dict.fromkeys(("p_x", "p_residual", "p_weight"), f"*{kind}"),
            "p_out": f"*{quantized or kind}",
            "p_scale": "*fp32",
            **dict.fromkeys(("rows", "width", "x_stride", "residual_stride", "out_stride"), "i32"),
            "epsilon": "fp32",
            "offset": "fp32",
        },
        constants={
            "RESIDUAL": residual,
            "LARGEST": {"": 0.0, "i8": 127.0, "fp8e4nv": 448.0}[quantized],
            "INTEGER": quantized == "i8",
            "INTERPRETED": False,
            "BLOCK_T": how["BLOCK_T"],
            "BLOCK_K": 1 << (width - 1).bit_length(),
        },
        num_warps=how["num_warps"],
        aligned=frozenset(
            {"p_x", "p_residual", "p_weight", "p_out", "width", "x_stride", "residual_stride", "out_stride"}
        ),
        minimum=89 if quantized == "fp8e4nv" else 80,
    )
