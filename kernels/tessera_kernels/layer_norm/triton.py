# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`layer_norm` and its variants in Triton: whole rows in registers, everything read once and written once.

Rows are numbered through the samples: row r is token r % tokens of sample r // tokens, and its modulation is found by
strides, 0 between tokens where a sample has one. Does not know [B, T, C] otherwise. T rows, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import tuning

FEW = 256
"""Rows up to which programs alone do not fill a device: each gets more warps."""
RESIDUAL_BLOCK = 2048
"""Channels of a program that adds a gated residual."""


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
    """Normalize BLOCK_T rows. A pointer that is None is what this launch does without."""
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
        # What later layers see is the rounded sum, so that is what is normalized.
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
    """Add a block of channels of one row, times its gate."""
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
    """The name of a class of shapes, as tuned tables have it."""
    return f"C{triton.next_power_of_2(channels)} {'few' if rows <= FEW else 'many'}"


def config(channels: int, rows: int, dtype: torch.dtype) -> Mapping[str, int]:
    """`BLOCK_T` and `num_warps` for rows of this width."""
    name = bucket(channels, rows)
    tuned = tuning.lookup("layer_norm", tuning.device_here(), str(dtype).removeprefix("torch."), name)
    return tuned or heuristic(channels, rows)


def heuristic(channels: int, rows: int) -> Mapping[str, int]:
    """16 elements a thread where there are many rows, 8 where there are few; narrow rows share a program."""
    block = triton.next_power_of_2(channels)
    together = max(1, min(1024 // block, triton.next_power_of_2(max(rows // FEW, 1))))
    warps = together * block // (256 if rows <= FEW else 512)
    return {"BLOCK_T": together, "num_warps": max(1, min(warps, 16))}


def candidates(channels: int) -> list[Mapping[str, int]]:
    """What tuning chooses from: 4 to 16 elements a thread, fewer of several rows, whose modulations take registers."""
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
    """Fill `out`; where something is added, x becomes the sum.

    Args:
        x_TC: rows of contiguous channels, at most `registered.WIDEST` of them.
        out_TC: contiguous, of x's shape.
        epsilon: keeps the root away from zero.
        tokens: rows of a sample.
        centered: whether the mean is taken off.
        weight_C: contiguous, or None.
        bias_C: contiguous, or None.
        scale_BSC: with contiguous channels, or None; then there is no shift either.
        shift_BSC: likewise.
        added_TC: rows of contiguous channels, or None.
        gate_BSC: of what is added, as scale, or None.
        configuration: instead of what `config` decides.
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
    """x becomes x + gate · added.

    Args:
        x_TC: contiguous.
        added_TC: rows of contiguous channels.
        gate_BSC: with contiguous channels.
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
    """Between samples and between tokens; a sample's one modulation is every token's."""
    if modulation_BSC is None:
        return 0, 0
    return modulation_BSC.stride(0), 0 if modulation_BSC.shape[1] == 1 else modulation_BSC.stride(1)
