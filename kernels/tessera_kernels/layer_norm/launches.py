"""All launches of `layer_norm` and its variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tessera_kernels.gate.launch import Launch
from tessera_kernels.layer_norm.bench import TUNED_WIDTHS

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
WIDTHS = (1280, 1920, 3072, 5120, 16384)
"""Channels of Whisper-large, CogVideoX-2B, CogVideoX-5B and Wan 14B, and the widest row."""
SIZES = ("tokens", "channels", "x_stride", "added_stride")
STRIDES = tuple(f"{name}_stride_{axis}" for name in ("gate", "scale", "shift") for axis in "bt")


def launches() -> Iterator[Launch]:
    """Plain with weight and bias, modulated, and modulated after a gated residual."""
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415 - Triton is needed for launches alone

    for channels in WIDTHS:
        for rows in (64, 65536):
            yield _norm(channels, rows, torch.bfloat16, ("weight", "bias"))
            yield _norm(channels, rows, torch.bfloat16, ("scale", "shift"))
        yield _norm(channels, 65536, torch.bfloat16, ("added", "gate", "scale", "shift", "weight", "bias"))
    for channels in TUNED_WIDTHS:
        for how in triton.candidates(channels):
            yield _norm(channels, 65536, torch.bfloat16, ("added", "gate", "scale", "shift"), configuration=how)
    for dtype in (torch.float16, torch.float32):
        yield _norm(3072, 65536, dtype, ("weight", "bias"))
        yield _norm(3072, 65536, dtype, ("added", "gate", "scale", "shift"))
    yield _norm(2048, 65536, torch.bfloat16, ("scale", "shift"), centered=False)
    for kind in TYPES.values():
        yield Launch(
            name=f"gated residual {kind}",
            kernel=triton.residual_kernel,
            signature={
                **dict.fromkeys(("p_x", "p_added"), f"*{kind}"),
                "p_gate": "*fp32",
                **dict.fromkeys(("tokens", "channels", "added_stride", "gate_stride_b", "gate_stride_t"), "i32"),
            },
            constants={"BLOCK_C": triton.RESIDUAL_BLOCK},
            aligned=frozenset(
                {"p_x", "p_added", "p_gate", "channels", "added_stride", "gate_stride_b", "gate_stride_t"}
            ),
        )


def _norm(
    channels: int,
    rows: int,
    dtype: torch.dtype,
    given: tuple[str, ...],
    *,
    centered: bool = True,
    configuration: Mapping[str, int] | None = None,
) -> Launch:
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415

    how = configuration or triton.config(channels, rows, dtype)
    size = f"T{rows}" if configuration is None else f"{how['BLOCK_T']} rows {how['num_warps']} warps"
    kind = TYPES[dtype]
    pointers = {"added": kind, "gate": "fp32", "scale": "fp32", "shift": "fp32", "weight": kind, "bias": kind}
    constants: dict[str, Any] = {f"p_{name}": None for name in pointers if name not in given}
    return Launch(
        name=f"{kind} {' '.join(given)}{'' if centered else ' RMS'} C{channels} {size}",
        kernel=triton.norm_kernel,
        signature={
            "p_x": f"*{kind}",
            **{f"p_{name}": f"*{pointers[name]}" for name in given},
            "p_out": f"*{kind}",
            "rows": "i32",
            **dict.fromkeys(SIZES + STRIDES, "i32"),
            "epsilon": "fp32",
        },
        constants={
            **constants,
            "CENTERED": centered,
            "BLOCK_T": how["BLOCK_T"],
            "BLOCK_C": 1 << (channels - 1).bit_length(),
        },
        num_warps=how["num_warps"],
        aligned=frozenset({"p_x", "p_out", *(f"p_{name}" for name in given), *SIZES[1:], *STRIDES}),
    )
