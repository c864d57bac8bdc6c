# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""What matrix products share: which tile a program makes, of which rows, and how parts of split sums come together.

Products are made transposed, weights from the left: their outputs fill the 64 rows that Hopper's warp groups need, so
a tile may have as few as 16 tokens. Imports Triton. Does not know how weights are stored.

Shape letters: T tokens, N outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

SWIZZLE = tl.constexpr(8)
"""Tiles of tokens that are made next to each other, so that weights are found in the cache."""
REDUCED = 1024
"""Elements of a program that adds parts."""


@triton.jit
def tile_of(i_tile, tokens, outputs, B_T: tl.constexpr, B_N: tl.constexpr):
    """Which tile of tokens and which of outputs the i-th program makes."""
    tiles_T = tl.cdiv(tokens, B_T)
    tiles_N = tl.cdiv(outputs, B_N)
    i_first = i_tile // (SWIZZLE * tiles_N) * SWIZZLE
    together = tl.minimum(tiles_T - i_first, SWIZZLE)
    i_within = i_tile % (SWIZZLE * tiles_N)
    return i_first + i_within % together, i_within // together


@triton.jit
def rows_of(p_rows, i_T, tokens, B_T: tl.constexpr, GROUPED: tl.constexpr):
    """Rows of a tile, int64, and which of them there are. Where rows are grouped, `p_rows` has them in order."""
    i_rows = i_T.to(tl.int64) * B_T + tl.arange(0, B_T)
    if GROUPED:
        i_rows = tl.load(p_rows + i_rows).to(tl.int64)
    return i_rows, i_rows < tokens


@triton.jit
def gated(b_gate, b_up, GATED: tl.constexpr):
    """SwiGLU (Shazeer 2020); with GATED of 2 the clamped form of gpt-oss (see `grouped_gemm.reference`)."""
    if GATED == 2:
        # Comparisons keep what is not a number, which a minimum would not.
        b_gate = tl.where(b_gate > 7.0, 7.0, b_gate)
        b_up = tl.where(b_up > 7.0, 7.0, b_up)
        b_up = tl.where(b_up < -7.0, -7.0, b_up) + 1.0
        b_out = b_gate / (1.0 + tl.exp(b_gate * -1.702)) * b_up
    else:
        b_out = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    return b_out


@triton.jit
def store_tile(p_out, b_NT, i_rows, there, o_n, outputs, out_stride):
    """Write a transposed tile."""
    p_tile = p_out + i_rows[None, :] * out_stride + o_n[:, None]
    tl.store(p_tile, b_NT.to(p_out.dtype.element_ty), mask=there[None, :] & (o_n < outputs)[:, None])


@triton.jit
def add_parts_kernel(
    p_parts, p_bias, p_out, elements, outputs, SPLITS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the parts of split sums in their order, so that the same bits come out every time."""
    o_out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = o_out < elements
    b_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for i_part in tl.static_range(SPLITS):
        b_sum += tl.load(p_parts + i_part * tl.cast(elements, tl.int64) + o_out, mask=there, other=0.0)
    if BIAS:
        b_sum += tl.load(p_bias + o_out % outputs, mask=there, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, b_sum.to(p_out.dtype.element_ty), mask=there)


def add_parts(parts_STN: torch.Tensor, bias_N: torch.Tensor | None, out_TN: torch.Tensor) -> None:
    """Fill a contiguous `out` with the sum over parts, and the bias."""
    elements = out_TN.numel()
    add_parts_kernel[(triton.cdiv(elements, REDUCED),)](
        parts_STN,
        parts_STN if bias_N is None else bias_N,
        out_TN,
        elements,
        out_TN.shape[1],
        SPLITS=parts_STN.shape[0],
        BIAS=bias_N is not None,
        BLOCK=REDUCED,
        num_warps=4,
    )


def splits_for(tiles: int, steps: int, units: int, *, waves: int = 2, least: int = 4, most: int = 16) -> int:
    """Into how many parts sums are split, a power of two, so that `tiles` fill a device.

    Args:
        tiles: programs if nothing is split.
        steps: of the loop over inputs, in one tile.
        units: multiprocessors.
        waves: programs wanted for each multiprocessor.
        least: steps that a part must have.
        most: parts.
    """
    splits = 1
    while splits < most and tiles * splits < waves * units and steps // (2 * splits) >= least:
        splits *= 2
    return splits


def tokens_bucket(tokens: int) -> str:
    """A class of token counts, as tuned tables name it: powers of two up to 256, then all."""
    return f"T{triton.next_power_of_2(tokens)}" if tokens <= 256 else "Tmany"


def without(config: Mapping[str, int], *names: str) -> dict[str, int]:
    """A configuration without some of its names: those that are not a kernel's own."""
    return {name: value for name, value in config.items() if name not in names}
