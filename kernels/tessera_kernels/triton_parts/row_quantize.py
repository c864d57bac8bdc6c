# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Quantizes rows that a kernel holds in registers, with one scale for each row. Imports Triton.

The scale of a row is its largest magnitude over the largest value of the dtype. It is not finite if the row is not, so
that an overflow remains visible. `row_quantize_reference` beside this file computes the same in plain torch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_kernels.triton_parts.float8 import to_float8


@triton.jit
def quantize_rows(b_y, LARGEST: tl.constexpr, INTEGER: tl.constexpr, INTERPRETED: tl.constexpr):
    """Quantize float32 rows to elements [T, K], int8 if INTEGER and float8 otherwise, and float32 scales [T]."""
    # The maximum ignores NaN, and only NaN differs from itself.
    missing = tl.sum((b_y != b_y).to(tl.int32), axis=1) > 0  # noqa: PLR0124
    scale = tl.where(missing, float("nan"), tl.div_rn(tl.max(tl.abs(b_y), axis=1), LARGEST))
    b_elements = tl.div_rn(b_y, tl.broadcast_to(tl.maximum(scale, 1e-30)[:, None], b_y.shape))
    b_elements = tl.minimum(tl.maximum(b_elements, -LARGEST), LARGEST)
    if INTEGER:
        # Round to nearest, ties to even: adding 1.5 · 2^23 leaves no fraction bits.
        b_elements = (b_elements + 12582912.0) - 12582912.0
        quantized = tl.where(b_elements == b_elements, b_elements, 0.0).to(tl.int8)  # noqa: PLR0124
    else:
        quantized = to_float8(b_elements, INTERPRETED)
    return quantized, scale
