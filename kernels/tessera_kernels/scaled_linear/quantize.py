# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Rounding tokens to eight bits in one launch, a scale for each token or each 128 inputs of one. Imports Triton.

Shape letters: T tokens, K inputs, J blocks of 128 inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.storage.scaled_weight import BLOCK
from tessera_kernels.triton_parts.float8 import to_float8
from tessera_kernels.triton_parts.row_quantize import quantize_rows

TOGETHER = 8
"""Blocks of one token that a program rounds."""
PER_THREAD = 32
"""Elements of a row that one thread holds, at most, up to the widest program."""


@triton.jit
def quantize_kernel(
    p_x,
    p_factor,
    p_given,
    p_out,
    p_scale,
    inputs,
    blocks,
    x_stride,
    FACTOR: tl.constexpr,
    GIVEN: tl.constexpr,
    LARGEST: tl.constexpr,
    INTEGER: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    B_J: tl.constexpr,
):
    """Some blocks of one token's inputs; FACTOR: times a factor for each input; GIVEN: the scale of all is known."""
    i_row = tl.program_id(0).to(tl.int64)
    o_j = tl.program_id(1) * B_J + tl.arange(0, B_J)
    o_k = o_j[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    there = o_k < inputs
    b_x = tl.load(p_x + i_row * x_stride + o_k, mask=there, other=0.0).to(tl.float32)
    if FACTOR:
        b_x *= tl.load(p_factor + o_k, mask=there, other=0.0)
    if GIVEN:
        scale = tl.zeros((B_J,), dtype=tl.float32) + tl.load(p_given)
        # What is not finite less itself is not a number; anything else is 0.
        spoiled = tl.sum(tl.where(b_x - b_x == 0.0, 0, 1), axis=1) > 0
        b_number = tl.div_rn(b_x, tl.broadcast_to(scale[:, None], b_x.shape))
        b_number = tl.minimum(tl.maximum(b_number, -LARGEST), LARGEST)
        b_number = tl.where(b_number == b_number, b_number, 0.0)  # noqa: PLR0124
        if INTEGER:  # noqa: SIM108 - Triton wants both sides of a conditional expression to have one type
            b_out = ((b_number + 12582912.0) - 12582912.0).to(tl.int8)
        else:
            b_out = to_float8(b_number, INTERPRETED)
        scale = tl.where(spoiled, float("nan"), scale)
    else:
        b_out, scale = quantize_rows(b_x, LARGEST, INTEGER, INTERPRETED)
    tl.store(p_scale + i_row * blocks + o_j, scale, mask=o_j < blocks)
    tl.store(p_out + i_row * inputs + o_k, b_out, mask=there)


def warps_for(width: int) -> int:
    """Of a program that holds a row of this width."""
    return max(1, min(16, width // (32 * PER_THREAD)))


def quantize_tokens(
    x_TK: torch.Tensor,
    dtype: torch.dtype,
    *,
    blocks: bool = False,
    factor_K: torch.Tensor | None = None,
    given: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `tessera_kernels.scaled_linear.quantize_tokens`.

    Args:
        x_TK: inputs of a row are contiguous.
        dtype: of the numbers.
        blocks: a scale for every 128 inputs.
        factor_K: float32, what inputs are multiplied with before.
        given: float32 [1], the scale, if it is known; not with blocks.
        out: numbers and scales to fill.
    """
    tokens, inputs = x_TK.shape
    width = BLOCK if blocks else triton.next_power_of_2(max(inputs, 1))
    count, together = triton.cdiv(inputs, width), TOGETHER if blocks else 1
    if out is None:
        shape = (tokens, count) if blocks else (tokens,)
        numbers, scales = x_TK.new_empty(tokens, inputs, dtype=dtype), x_TK.new_zeros(shape, dtype=torch.float32)
    else:
        numbers, scales = out
    if tokens and inputs:
        quantize_kernel[(tokens, triton.cdiv(count, together))](
            x_TK,
            scales if factor_K is None else factor_K,
            scales if given is None else given,
            numbers,
            scales,
            inputs,
            count,
            x_TK.stride(0),
            FACTOR=factor_K is not None,
            GIVEN=given is not None,
            LARGEST=LARGEST[dtype],
            INTEGER=not dtype.is_floating_point,
            INTERPRETED=triton.knobs.runtime.interpret,
            BLOCK_K=width,
            B_J=together,
            num_warps=warps_for(width * together),
        )
    return numbers, scales
