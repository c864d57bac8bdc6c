"""All launches of `gated_activation`: every activation, plain and quantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import torch

from tessera_kernels.gate.launch import Launch
from tessera_kernels.gated_activation.bench import TUNED_WIDTHS
from tessera_kernels.gated_activation.reference import ACTIVATIONS

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
INNER = (768, 5120, 14336, 16384)
"""Inner features of an expert of Qwen3-30B-A3B, of Whisper-large and Llama-3-8B, and the widest row."""
LARGEST = {"i8": 127.0, "fp8e4nv": 448.0}


def launches() -> Iterator[Launch]:
    """Every activation and output for few rows and many; configurations to tune; other dtypes at one width."""
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - Triton is needed for launches alone

    for inner in INNER:
        for activation in ACTIVATIONS:
            for rows in (64, 65536):
                yield _launch(inner, rows, torch.bfloat16, activation, "")
            for quantized in LARGEST:
                yield _launch(inner, 65536, torch.bfloat16, activation, quantized)
    for inner, activation, quantized in product(TUNED_WIDTHS, ("silu", "gelu"), ("", "i8")):
        for how in triton.candidates(inner, quantized=bool(quantized)):
            yield _launch(inner, 65536, torch.bfloat16, activation, quantized, how)
    for dtype in (torch.float16, torch.float32):
        for quantized in ("", *LARGEST):
            yield _launch(14336, 65536, dtype, "silu", quantized)


def _launch(
    inner: int,
    rows: int,
    dtype: torch.dtype,
    activation: str,
    quantized: str,
    configuration: Mapping[str, int] | None = None,
) -> Launch:
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415

    how = configuration or triton.config(inner, rows, dtype, quantized=bool(quantized))
    size = f"T{rows}" if configuration is None else f"{how['BLOCK_I']} a block {how['num_warps']} warps"
    kind = TYPES[dtype]
    constants = {"ACTIVATION": activation, "BLOCK_I": how["BLOCK_I"]}
    scaled = {"LARGEST": LARGEST.get(quantized), "INTEGER": quantized == "i8", "INTERPRETED": False}
    strides = ("inner", "packed_stride", "out_stride")
    return Launch(
        name=f"{kind} {activation}{f' to {quantized}' if quantized else ''} I{inner} {size}",
        kernel=triton.quantizing_kernel if quantized else triton.gated_activation_kernel,
        signature={
            "p_packed": f"*{kind}",
            "p_out": f"*{quantized or kind}",
            **({"p_scale": "*fp32"} if quantized else {}),
            **dict.fromkeys(strides, "i32"),
        },
        constants=constants | scaled if quantized else constants,
        num_warps=how["num_warps"],
        aligned=frozenset({"p_packed", "p_out", *strides}),
        minimum=89 if quantized == "fp8e4nv" else 80,
    )
