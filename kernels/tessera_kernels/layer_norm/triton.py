# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`layer_norm` and its variants in Triton: rows stay in registers, so every element is read once and written once.

Samples and tokens are one dim of rows here: row r is token r % tokens of sample r // tokens. Its modulation is located
by strides; the stride between tokens is 0 if a sample has one modulation. Shape letters: T rows, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import tuning

FEW_ROWS = 256
"""Largest number of rows for which programs get more warps, because rows alone do not fill a device with programs."""
RESIDUAL_BLOCK = 2048
"""Channels that one program of `residual_kernel` computes."""


@triton.jit
def _modulation(p, i_rows, o_c, here, tokens, stride_b, stride_t):
    """Rows [T, C] of a modulation as float32."""
    o_rows = (i_rows // tokens) * stride_b + (i_rows % tokens) * stride_t
    return tl.load(p + o_rows[:, None] + o_c[None, :], mask=here, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["epsilon"])
def norm_kernel(
    p_x,
    p_added,
    p_gate,
    p_scale,
    p_shift,
    p_weight,
    p_bias,
    p_out,
    rows,
    tokens,
    channels,
    x_stride,
    added_stride,
    gate_stride_b,
    gate_stride_t,
    scale_stride_b,
    scale_stride_t,
    shift_stride_b,
    shift_stride_t,
    epsilon,
    CENTERED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalize BLOCK_T rows. Pointers of inputs that a variant does not have are None."""
    i_rows = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    o_c = tl.arange(0, BLOCK_C)
    in_row = o_c < channels
    here = (i_rows < rows)[:, None] & in_row[None, :]
    p_rows = p_x + i_rows[:, None] * x_stride + o_c[None, :]
    b_x = tl.load(p_rows, mask=here, other=0.0).to(tl.float32)
    if p_added is not None:
        p_added_rows = p_added + i_rows[:, None] * added_stride + o_c[None, :]
        b_added = tl.load(p_added_rows, mask=here, other=0.0).to(tl.float32)
        if p_gate is not None:
            b_added *= _modulation(p_gate, i_rows, o_c, here, tokens, gate_stride_b, gate_stride_t)
        b_sum = (b_x + b_added).to(p_x.dtype.element_ty)
        tl.store(p_rows, b_sum, mask=here)
        # Later layers see the rounded sum, so the rounded sum is normalized.
        b_x = b_sum.to(tl.float32)
    if CENTERED:
        mean = tl.sum(b_x, axis=1) / channels
        b_x = tl.where(here, b_x - mean[:, None], 0.0)
    b_y = b_x * (1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=1) / channels + epsilon))[:, None]
    if p_weight is not None:
        b_y *= tl.load(p_weight + o_c, mask=in_row, other=0.0).to(tl.float32)[None, :]
    if p_bias is not None:
        b_y += tl.load(p_bias + o_c, mask=in_row, other=0.0).to(tl.float32)[None, :]
    if p_scale is not None:
        b_y *= 1.0 + _modulation(p_scale, i_rows, o_c, here, tokens, scale_stride_b, scale_stride_t)
        b_y += _modulation(p_shift, i_rows, o_c, here, tokens, shift_stride_b, shift_stride_t)
    p_out_rows = p_out + i_rows[:, None] * channels + o_c[None, :]
    tl.store(p_out_rows, b_y.to(p_out.dtype.element_ty), mask=here)


@triton.jit
def residual_kernel(
    p_x,
    p_added,
    p_gate,
    tokens,
    channels,
    added_stride,
    gate_stride_b,
    gate_stride_t,
    BLOCK_C: tl.constexpr,
):
    """Add a block of channels of one row, multiplied by the gate."""
    row = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    here = o_c < channels
    p_row = p_x + row * channels + o_c
    p_gates = p_gate + (row // tokens) * gate_stride_b + (row % tokens) * gate_stride_t + o_c
    b_added = tl.load(p_added + row * added_stride + o_c, mask=here, other=0.0).to(tl.float32)
    b_gate = tl.load(p_gates, mask=here, other=0.0).to(tl.float32)
    b_sum = tl.load(p_row, mask=here, other=0.0).to(tl.float32) + b_added * b_gate
    tl.store(p_row, b_sum.to(p_x.dtype.element_ty), mask=here)


def bucket(channels: int, rows: int) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    return f"C{triton.next_power_of_2(channels)} {'few' if rows <= FEW_ROWS else 'many'}"


def config(channels: int, rows: int, dtype: torch.dtype) -> Mapping[str, int]:
    """The launch configuration for rows of this width: `BLOCK_T` and `num_warps`."""
    name = bucket(channels, rows)
    tuned = tuning.lookup("layer_norm", tuning.device_here(), str(dtype).removeprefix("torch."), name)
    return tuned or heuristic(channels, rows)


def heuristic(channels: int, rows: int) -> Mapping[str, int]:
    """Configuration without a tuned entry: 16 elements for each thread with many rows, 8 with few.

    Narrow rows share a program.
    """
    block = triton.next_power_of_2(channels)
    together = max(1, min(1024 // block, triton.next_power_of_2(max(rows // FEW_ROWS, 1))))
    warps = together * block // (256 if rows <= FEW_ROWS else 512)
    return {"BLOCK_T": together, "num_warps": max(1, min(warps, 16))}


def candidates(channels: int) -> list[Mapping[str, int]]:
    """Configurations to tune: 4 to 16 elements for each thread, at most 8 if a program has several rows.

    Each row of a program needs registers for its modulation.
    """
    block = triton.next_power_of_2(channels)
    return [
        {"BLOCK_T": together, "num_warps": warps}
        for together in (1, 2, 4)
        for warps in (2, 4, 8, 16)
        if 4 <= together * block // (32 * warps) <= (16 if together == 1 else 8)
    ]


def norm(
    x_TC: torch.Tensor,
    *,
    out_TC: torch.Tensor,
    epsilon: float,
    tokens: int,
    centered: bool = True,
    weight_C: torch.Tensor | None = None,
    bias_C: torch.Tensor | None = None,
    scale_BSC: torch.Tensor | None = None,
    shift_BSC: torch.Tensor | None = None,
    added_TC: torch.Tensor | None = None,
    gate_BSC: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> None:
    """Write the normalized rows to `out`; if `added` is given, x is replaced by the sum.

    Args:
        x_TC: rows with contiguous channels, at most `registered.WIDEST` of them.
        out_TC: contiguous, in the shape of x.
        epsilon: added to the variance, so that the root is not zero.
        tokens: rows of a sample.
        centered: whether the mean is subtracted.
        weight_C: contiguous, or None.
        bias_C: contiguous, or None.
        scale_BSC: contiguous channels; None if there is no modulation.
        shift_BSC: contiguous channels; None if there is no modulation.
        added_TC: rows with contiguous channels to add to x first, or None.
        gate_BSC: factor on `added` with contiguous channels, or None.
        configuration: launch configuration; the result of `config` if not given.
    """
    rows, channels = x_TC.shape
    if rows == 0 or channels == 0:
        return
    how = dict(configuration or config(channels, rows, x_TC.dtype))
    norm_kernel[(triton.cdiv(rows, how["BLOCK_T"]),)](
        x_TC,
        added_TC,
        gate_BSC,
        scale_BSC,
        shift_BSC,
        weight_C,
        bias_C,
        out_TC,
        rows,
        tokens,
        channels,
        x_TC.stride(0),
        0 if added_TC is None else added_TC.stride(0),
        *strides(gate_BSC),
        *strides(scale_BSC),
        *strides(shift_BSC),
        epsilon,
        CENTERED=centered,
        BLOCK_C=triton.next_power_of_2(channels),
        **how,
    )


def gated_residual(x_TC: torch.Tensor, added_TC: torch.Tensor, gate_BSC: torch.Tensor, *, tokens: int) -> None:
    """Replace x by x + gate · added, in place.

    Args:
        x_TC: contiguous.
        added_TC: rows with contiguous channels.
        gate_BSC: factor on `added`, with contiguous channels.
        tokens: rows of a sample.
    """
    rows, channels = x_TC.shape
    if rows == 0 or channels == 0:
        return
    residual_kernel[(rows, triton.cdiv(channels, RESIDUAL_BLOCK))](
        x_TC,
        added_TC,
        gate_BSC,
        tokens,
        channels,
        added_TC.stride(0),
        *strides(gate_BSC),
        BLOCK_C=RESIDUAL_BLOCK,
        num_warps=4,
    )


def strides(modulation_BSC: torch.Tensor | None) -> tuple[int, int]:
    """Strides of a modulation between samples and between tokens; 0 between tokens if a sample has one modulation."""
    if modulation_BSC is None:
        return 0, 0
    return modulation_BSC.stride(0), 0 if modulation_BSC.shape[1] == 1 else modulation_BSC.stride(1)
