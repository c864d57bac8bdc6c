# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`rms_norm` in Triton: rows stay in registers, so every element is read once and written once.

Tensors have two dims here, [T, K]. Shape letters: T rows, K features.
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
"""Largest number of rows for which programs get more warps, because rows alone do not fill a device with programs."""


@triton.jit(do_not_specialize=["epsilon", "offset"])
def rms_norm_kernel(
    p_x,
    p_residual,
    p_weight,
    p_out,
    p_scale,
    rows,
    width,
    x_stride,
    residual_stride,
    out_stride,
    epsilon,
    offset,
    RESIDUAL: tl.constexpr,
    LARGEST: tl.constexpr,
    INTEGER: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Normalize BLOCK_T rows.

    RESIDUAL: x is added to the residual, which is replaced by the sum. LARGEST is the largest value of the quantized
    dtype, 0 if the result is not quantized; INTEGER: that dtype is int8.
    """
    i_rows = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    o_k = tl.arange(0, BLOCK_K)
    in_row = o_k < width
    here = (i_rows < rows)[:, None] & in_row[None, :]
    # Loaded before any store: loads are not moved before stores, so the program would wait for this one at the end.
    b_weight = tl.load(p_weight + o_k, mask=in_row, other=0.0).to(tl.float32) + offset
    b_x = tl.load(p_x + i_rows[:, None] * x_stride + o_k[None, :], mask=here, other=0.0).to(tl.float32)
    if RESIDUAL:
        p_sum = p_residual + i_rows[:, None] * residual_stride + o_k[None, :]
        b_sum = (b_x + tl.load(p_sum, mask=here, other=0.0).to(tl.float32)).to(p_residual.dtype.element_ty)
        tl.store(p_sum, b_sum, mask=here)
        # Later layers see the rounded sum, so the rounded sum is normalized.
        b_x = b_sum.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=1) / width + epsilon)
    b_y = b_x * inverse[:, None] * b_weight[None, :]
    if LARGEST > 0:
        b_y = tl.where(here, b_y, 0.0)
        b_out, scale = quantize_rows(b_y, LARGEST, INTEGER, INTERPRETED)
        tl.store(p_scale + i_rows, scale, mask=i_rows < rows)
    else:
        b_out = b_y.to(p_out.dtype.element_ty)
    tl.store(p_out + i_rows[:, None] * out_stride + o_k[None, :], b_out, mask=here)


def bucket(width: int, rows: int) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    return f"K{triton.next_power_of_2(width)} {'few' if rows <= FEW_ROWS else 'many'}"


def config(width: int, rows: int, dtype: torch.dtype) -> Mapping[str, int]:
    """The launch configuration for rows of this width: `BLOCK_T` and `num_warps`."""
    name = bucket(width, rows)
    tuned = tuning.lookup("rms_norm", tuning.device_here(), str(dtype).removeprefix("torch."), name)
    return tuned or heuristic(width, rows)


def heuristic(width: int, rows: int) -> Mapping[str, int]:
    """Configuration without a tuned entry: 16 elements for each thread with many rows, 8 with few.

    Narrow rows share a program.
    """
    block = triton.next_power_of_2(width)
    together = max(1, min(1024 // block, triton.next_power_of_2(max(rows // FEW_ROWS, 1))))
    warps = together * block // (256 if rows <= FEW_ROWS else 512)
    return {"BLOCK_T": together, "num_warps": max(1, min(warps, 16))}


def candidates(width: int) -> list[Mapping[str, int]]:
    """Configurations to tune: 4 to 16 elements for each thread."""
    block = triton.next_power_of_2(width)
    return [
        {"BLOCK_T": together, "num_warps": warps}
        for together in (1, 2, 4, 8, 16)
        for warps in (1, 2, 4, 8, 16)
        if together * block <= 8192 and 4 <= together * block // (32 * warps) <= 16
    ]


def rms_norm(
    x_TK: torch.Tensor,
    weight_K: torch.Tensor,
    epsilon: float,
    offset: float,
    *,
    residual_TK: torch.Tensor | None = None,
    out_TK: torch.Tensor,
    scale_T: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> None:
    """Write the result to `out`, and its scales to `scale` if it is quantized; a residual is replaced by the sum.

    Args:
        x_TK: rows with contiguous features, as in `residual` and `out`; at most `registered.WIDEST` features.
        weight_K: contiguous.
        epsilon: added to the mean square, so that the root is not zero.
        offset: added to the weight.
        residual_TK: added to x first and replaced by the sum; None for no residual.
        out_TK: [rows, features], in the dtype of x or a dtype of `LARGEST`.
        scale_T: float32 [rows]; None if `out` is not quantized.
        configuration: launch configuration; the result of `config` if not given.
    """
    rows, width = x_TK.shape
    if rows == 0 or width == 0:
        return
    how = dict(configuration or config(width, rows, x_TK.dtype))
    residual = x_TK if residual_TK is None else residual_TK
    rms_norm_kernel[(triton.cdiv(rows, how["BLOCK_T"]),)](
        x_TK,
        residual,
        weight_K,
        out_TK,
        out_TK if scale_T is None else scale_T,
        rows,
        width,
        x_TK.stride(0),
        residual.stride(0),
        out_TK.stride(0),
        epsilon,
        offset,
        RESIDUAL=residual_TK is not None,
        LARGEST=0.0 if scale_T is None else LARGEST[out_TK.dtype],
        INTEGER=not out_TK.dtype.is_floating_point,
        INTERPRETED=triton.knobs.runtime.interpret,
        BLOCK_K=triton.next_power_of_2(width),
        **how,
    )
