# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Quantizing the rows that a kernel holds in registers, a scale each, for ops that end in it. Imports Triton.

A row's scale is its largest magnitude over the dtype's largest number, and not finite where the row is not: an overflow
stays to be seen. `tessera_kernels.triton_parts.row_quantize_reference` has the same in plain torch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_kernels.triton_parts.float8 import to_float8


@triton.jit
def quantize_rows(b_y, LARGEST: tl.constexpr, INTEGER: tl.constexpr, INTERPRETED: tl.constexpr):
    """Numbers [T, K], int8 if INTEGER and else float8, of float32 rows; and their scales [T]."""
    # The maximum passes over NaN, and only NaN differs from itself.
    missing = tl.sum((b_y != b_y).to(tl.int32), axis=1) > 0  # noqa: PLR0124
    scale = tl.where(missing, float("nan"), tl.div_rn(tl.max(tl.abs(b_y), axis=1), LARGEST))
    numbers = tl.div_rn(b_y, tl.broadcast_to(tl.maximum(scale, 1e-30)[:, None], b_y.shape))
    numbers = tl.minimum(tl.maximum(numbers, -LARGEST), LARGEST)
    if INTEGER:
        # To the nearest, halves to even: adding 1.5 · 2^23 leaves no bits behind the point.
        numbers = (numbers + 12582912.0) - 12582912.0
        quantized = tl.where(numbers == numbers, numbers, 0.0).to(tl.int8)  # noqa: PLR0124
    else:
        quantized = to_float8(numbers, INTERPRETED)
    return quantized, scale
