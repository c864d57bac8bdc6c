# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Quantizes tokens to eight bits in one launch, with a scale for each token or each 128 inputs. Imports Triton.

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

BLOCKS_PER_PROGRAM = 8
"""Blocks of one token that a program quantizes."""
ELEMENTS_PER_THREAD = 32
"""Most elements of a row that one thread holds, up to programs of 16 warps."""


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
    """Quantize B_J blocks of the inputs of one token.

    FACTOR: inputs are first multiplied by a factor for each input. GIVEN: the scale of all tokens is given.
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_j = tl.program_id(1) * B_J + tl.arange(0, B_J)
    o_k = o_j[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    there = o_k < inputs
    b_x = tl.load(p_x + i_row * x_stride + o_k, mask=there, other=0.0).to(tl.float32)
    if FACTOR:
        b_x *= tl.load(p_factor + o_k, mask=there, other=0.0)
    if GIVEN:
        scale = tl.zeros((B_J,), dtype=tl.float32) + tl.load(p_given)
        # x - x is NaN if x is not finite, and 0 otherwise.
        not_finite = tl.sum(tl.where(b_x - b_x == 0.0, 0, 1), axis=1) > 0
        b_element = tl.div_rn(b_x, tl.broadcast_to(scale[:, None], b_x.shape))
        b_element = tl.minimum(tl.maximum(b_element, -LARGEST), LARGEST)
        b_element = tl.where(b_element == b_element, b_element, 0.0)  # noqa: PLR0124
        if INTEGER:  # noqa: SIM108 - Triton needs one type on both sides of a conditional expression
            b_out = ((b_element + 12582912.0) - 12582912.0).to(tl.int8)
        else:
            b_out = to_float8(b_element, INTERPRETED)
        scale = tl.where(not_finite, float("nan"), scale)
    else:
        b_out, scale = quantize_rows(b_x, LARGEST, INTEGER, INTERPRETED)
    tl.store(p_scale + i_row * blocks + o_j, scale, mask=o_j < blocks)
    tl.store(p_out + i_row * inputs + o_k, b_out, mask=there)


def warps_for(width: int) -> int:
    """Number of warps of a program that holds a row of this width."""
    return max(1, min(16, width // (32 * ELEMENTS_PER_THREAD)))


def quantize_tokens(
    x_TK: torch.Tensor,
    dtype: torch.dtype,
    *,
    blocks: bool = False,
    factor_K: torch.Tensor | None = None,
    given: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `tessera_kernels.scaled_linear.quantize_tokens`.

    Args:
        x_TK: rows with contiguous inputs.
        dtype: int8 or float8_e4m3fn.
        blocks: whether every 128 inputs of a token have a scale.
        factor_K: float32, factors on inputs before they are quantized; None for none.
        given: float32 [1], the scale of all tokens; None to compute scales. Not with `blocks`.
        out: quantized elements and scales to write to; new ones if not given.
    """
    tokens, inputs = x_TK.shape
    width = BLOCK if blocks else triton.next_power_of_2(max(inputs, 1))
    count, together = triton.cdiv(inputs, width), BLOCKS_PER_PROGRAM if blocks else 1
    if out is None:
        shape = (tokens, count) if blocks else (tokens,)
        quantized, scales = x_TK.new_empty(tokens, inputs, dtype=dtype), x_TK.new_zeros(shape, dtype=torch.float32)
    else:
        quantized, scales = out
    if tokens and inputs:
        quantize_kernel[(tokens, triton.cdiv(count, together))](
            x_TK,
            scales if factor_K is None else factor_K,
            scales if given is None else given,
            quantized,
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
    return quantized, scales
