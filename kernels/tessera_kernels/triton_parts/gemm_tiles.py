# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Parts of matrix products: the tile and rows of a program, gating, storing tiles, and adding parts of split sums.

Products are computed transposed, with the weight as the left operand: its outputs fill the 64 rows that warp groups of
Hopper need, so a tile may have as few as 16 tokens. Imports Triton. Knows nothing of how weights are stored.

Shape letters: T tokens, N outputs, S parts of split sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

SWIZZLE_TILES = tl.constexpr(8)
"""Tiles of tokens that adjacent programs compute with the same weights, so that these are in the cache."""
ELEMENTS_PER_SUM = 1024
"""Elements that one program of `add_parts_kernel` sums."""


@triton.jit
def tile_of(i_tile, tokens, outputs, B_T: tl.constexpr, B_N: tl.constexpr):
    """Indices of the tile of tokens and of the tile of outputs that the i-th program computes."""
    tiles_T = tl.cdiv(tokens, B_T)
    tiles_N = tl.cdiv(outputs, B_N)
    i_first = i_tile // (SWIZZLE_TILES * tiles_N) * SWIZZLE_TILES
    together = tl.minimum(tiles_T - i_first, SWIZZLE_TILES)
    i_within = i_tile % (SWIZZLE_TILES * tiles_N)
    return i_first + i_within % together, i_within // together


@triton.jit
def rows_of(p_rows, i_T, tokens, B_T: tl.constexpr, GROUPED: tl.constexpr):
    """Rows of a tile, int64, and the mask of rows that exist. With GROUPED, `p_rows` holds the row of each place."""
    i_rows = i_T.to(tl.int64) * B_T + tl.arange(0, B_T)
    if GROUPED:
        i_rows = tl.load(p_rows + i_rows).to(tl.int64)
    return i_rows, i_rows < tokens


@triton.jit
def gated(b_gate, b_up, GATED: tl.constexpr):
    """SwiGLU (Shazeer 2020); if GATED is 2, the clamped form of gpt-oss (`grouped_gemm.reference.swiglu`)."""
    if GATED == 2:
        # Comparisons preserve NaN; a minimum would not.
        b_gate = tl.where(b_gate > 7.0, 7.0, b_gate)
        b_up = tl.where(b_up > 7.0, 7.0, b_up)
        b_up = tl.where(b_up < -7.0, -7.0, b_up) + 1.0
        b_out = b_gate / (1.0 + tl.exp(b_gate * -1.702)) * b_up
    else:
        b_out = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    return b_out


@triton.jit
def store_tile(p_out, b_NT, i_rows, there, o_n, outputs, out_stride):
    """Write a transposed tile to rows of the output."""
    p_tile = p_out + i_rows[None, :] * out_stride + o_n[:, None]
    tl.store(p_tile, b_NT.to(p_out.dtype.element_ty), mask=there[None, :] & (o_n < outputs)[:, None])


@triton.jit
def add_parts_kernel(
    p_parts, p_bias, p_out, elements, outputs, SPLITS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the parts of split sums in their order, so that every run gives the same bits."""
    o_out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = o_out < elements
    b_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for i_part in tl.static_range(SPLITS):
        b_sum += tl.load(p_parts + i_part * tl.cast(elements, tl.int64) + o_out, mask=there, other=0.0)
    if BIAS:
        b_sum += tl.load(p_bias + o_out % outputs, mask=there, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, b_sum.to(p_out.dtype.element_ty), mask=there)


def add_parts(parts_STN: torch.Tensor, bias_N: torch.Tensor | None, out_TN: torch.Tensor) -> None:
    """Write the sum over parts plus the bias to a contiguous `out`."""
    elements = out_TN.numel()
    add_parts_kernel[(triton.cdiv(elements, ELEMENTS_PER_SUM),)](
        parts_STN,
        parts_STN if bias_N is None else bias_N,
        out_TN,
        elements,
        out_TN.shape[1],
        SPLITS=parts_STN.shape[0],
        BIAS=bias_N is not None,
        BLOCK=ELEMENTS_PER_SUM,
        num_warps=4,
    )


def splits_for(tiles: int, steps: int, multiprocessors: int, *, waves: int = 2, least: int = 4, most: int = 16) -> int:
    """Number of parts that sums are split into, a power of two, so that `tiles` fill a device.

    Args:
        tiles: number of programs without a split.
        steps: steps of the loop over inputs, in one tile.
        multiprocessors: number of multiprocessors of the device.
        waves: number of programs wanted for each multiprocessor.
        least: least number of steps of a part.
        most: largest number of parts.
    """
    splits = 1
    while splits < most and tiles * splits < waves * multiprocessors and steps // (2 * splits) >= least:
        splits *= 2
    return splits


def tokens_bucket(tokens: int) -> str:
    """Name of the bucket of a number of tokens in tuned files: the next power of two up to 256, `Tmany` above."""
    return f"T{triton.next_power_of_2(tokens)}" if tokens <= 256 else "Tmany"


def without(config: Mapping[str, int], *names: str) -> dict[str, int]:
    """A launch configuration without some of its names, for a kernel that does not take them."""
    return {name: value for name, value in config.items() if name not in names}
