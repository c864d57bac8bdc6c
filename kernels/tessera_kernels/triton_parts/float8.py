# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Converts to float8 (e4m3) inside a kernel. Imports Triton.

Triton 3.9's interpreter loses the carry if rounding up reaches the next power of two (0.99 becomes 0.5). In the
interpreter, values are therefore first rounded to values of float8, which convert exactly. On a GPU the hardware
converts.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_float8(b_x, INTERPRETED: tl.constexpr):
    """Convert float32 values within ±448 to float8 (e4m3), rounded to nearest, ties to even; NaN stays NaN."""
    if INTERPRETED:
        bits = b_x.to(tl.int32, bitcast=True)
        # A normal value keeps three mantissa bits; a subnormal one is a multiple of 2^-9.
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        small = (b_x + 24576.0) - 24576.0  # 1.5 · 2^(23 - 9)
        rounded = tl.where(tl.abs(b_x) < 0.015625, small, normal)
        b_x = tl.where(b_x == b_x, rounded, b_x)  # noqa: PLR0124 - only NaN differs from itself
    return b_x.to(tl.float8e4nv)
