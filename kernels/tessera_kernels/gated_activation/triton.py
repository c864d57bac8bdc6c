# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`gated_activation` in Triton: a program computes a block of a row, or a whole row if it is quantized.

Inputs have two dims here, [T, J]. Shape letters: T rows, I inner features, J = 2 · I.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import tuning
from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.triton_parts.row_quantize import quantize_rows

FEW_ROWS = 256
"""Largest number of rows for which blocks are kept small, because rows alone do not fill a device with programs."""


@triton.jit
def gated(b_gate, b_up, ACTIVATION: tl.constexpr):
    """act(gate) · up of float32 tiles."""
    if ACTIVATION == "silu":
        b_share = tl.sigmoid(b_gate)
    elif ACTIVATION == "gelu":
        b_share = 0.5 + 0.5 * tl.erf(b_gate * 0.7071067811865476)
    else:
        # (1 + tanh(z)) / 2 is the sigmoid of 2z.
        b_share = tl.sigmoid(1.5957691216057308 * (b_gate + 0.044715 * b_gate * b_gate * b_gate))
    return b_gate * b_share * b_up


@triton.jit
def gated_activation_kernel(
    p_packed,
    p_out,
    inner,
    packed_stride,
    out_stride,
    ACTIVATION: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Compute a block of features of one row."""
    row = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    here = o_i < inner
    p_gate = p_packed + row * packed_stride + o_i
    b_gate = tl.load(p_gate, mask=here, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + inner, mask=here, other=0.0).to(tl.float32)
    b_out = gated(b_gate, b_up, ACTIVATION)
    tl.store(p_out + row * out_stride + o_i, b_out.to(p_out.dtype.element_ty), mask=here)


@triton.jit
def quantizing_kernel(
    p_packed,
    p_out,
    p_scale,
    inner,
    packed_stride,
    out_stride,
    ACTIVATION: tl.constexpr,
    LARGEST: tl.constexpr,
    INTEGER: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Compute and quantize one whole row: its scale depends on all of its elements."""
    row = tl.program_id(0).to(tl.int64)
    o_i = tl.arange(0, BLOCK_I)[None, :]
    here = o_i < inner
    p_gate = p_packed + row * packed_stride + o_i
    b_gate = tl.load(p_gate, mask=here, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + inner, mask=here, other=0.0).to(tl.float32)
    b_out, scale = quantize_rows(gated(b_gate, b_up, ACTIVATION), LARGEST, INTEGER, INTERPRETED)
    tl.store(p_out + row * out_stride + o_i, b_out, mask=here)
    tl.store(p_scale + row + tl.arange(0, 1), scale)


def bucket(inner: int, rows: int, *, quantized: bool) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    amount = "few" if rows <= FEW_ROWS else "many"
    return f"I{triton.next_power_of_2(inner)} {amount}{' quantized' if quantized else ''}"


def config(inner: int, rows: int, dtype: torch.dtype, *, quantized: bool) -> Mapping[str, int]:
    """The launch configuration: `BLOCK_I` (the row's next power of two if it is quantized) and `num_warps`."""
    name = bucket(inner, rows, quantized=quantized)
    tuned = tuning.lookup("gated_activation", tuning.device_here(), str(dtype).removeprefix("torch."), name)
    return tuned or heuristic(inner, rows, quantized=quantized)


def heuristic(inner: int, rows: int, *, quantized: bool) -> Mapping[str, int]:
    """Configuration without a tuned entry: 8 elements for each thread, or 16 if whole rows are quantized."""
    whole = triton.next_power_of_2(inner)
    block = whole if quantized else min(whole, 1024 if rows <= FEW_ROWS else 2048)
    return {"BLOCK_I": block, "num_warps": max(1, min(block // (512 if quantized else 256), 16))}


def candidates(inner: int, *, quantized: bool) -> list[Mapping[str, int]]:
    """Configurations to tune: 2 to 32 elements for each thread; only warps differ if whole rows are quantized."""
    whole = triton.next_power_of_2(inner)
    return [
        {"BLOCK_I": block, "num_warps": warps}
        for block in ([whole] if quantized else [512, 1024, 2048, 4096])
        for warps in (1, 2, 4, 8, 16)
        if block <= whole and 2 <= block // (32 * warps) <= 32
    ]


def gated_activation(
    packed_TJ: torch.Tensor,
    activation: str,
    *,
    out_TI: torch.Tensor,
    scale_T: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> None:
    """Write the result to `out`, and its scales to `scale` if it is quantized.

    Args:
        packed_TJ: rows with contiguous features; at most `registered.WIDEST` inner features if they are quantized.
        activation: one of `reference.ACTIVATIONS`.
        out_TI: rows with contiguous features.
        scale_T: float32 [rows]; None if `out` is not quantized.
        configuration: launch configuration; the result of `config` if not given.
    """
    rows, inner = out_TI.shape
    if rows == 0 or inner == 0:
        return
    how = dict(configuration or config(inner, rows, packed_TJ.dtype, quantized=scale_T is not None))
    strides = (packed_TJ.stride(0), out_TI.stride(0))
    if scale_T is None:
        grid = (rows, triton.cdiv(inner, how["BLOCK_I"]))
        gated_activation_kernel[grid](packed_TJ, out_TI, inner, *strides, ACTIVATION=activation, **how)
        return
    quantizing_kernel[(rows,)](
        packed_TJ,
        out_TI,
        scale_T,
        inner,
        *strides,
        ACTIVATION=activation,
        LARGEST=LARGEST[out_TI.dtype],
        INTEGER=not out_TI.dtype.is_floating_point,
        INTERPRETED=triton.knobs.runtime.interpret,
        **how,
    )
