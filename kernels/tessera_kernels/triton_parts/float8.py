# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Rounding to float8 (e4m3) inside a kernel. Imports Triton.

Triton 3.9's interpreter loses the carry when rounding up reaches the next power of two (0.99 becomes 0.5), so there the
number is first rounded to one that float8 has, which converts exactly. On a GPU the conversion is the hardware's.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_float8(b_x, INTERPRETED: tl.constexpr):
    """float32 numbers within ±448 as float8 (e4m3), to the nearest, halves to even; NaN stays NaN."""
    if INTERPRETED:
        bits = b_x.to(tl.int32, bitcast=True)
        # Three bits stay behind the first; below the smallest normal number steps of 2^-9 do.
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        small = (b_x + 24576.0) - 24576.0  # 1.5 · 2^(23 - 9)
        rounded = tl.where(tl.abs(b_x) < 0.015625, small, normal)
        b_x = tl.where(b_x == b_x, rounded, b_x)  # noqa: PLR0124 - only NaN differs from itself
    return b_x.to(tl.float8e4nv)
