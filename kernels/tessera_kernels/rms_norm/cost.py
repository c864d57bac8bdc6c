"""Least FLOPs and bytes of `rms_norm` and its variants, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(
    rows: int, width: int, dtype: torch.dtype, *, residual: bool = False, quantized: torch.dtype | None = None
) -> Cost:
    """Cost of one call: x is read, the result is written, a residual is read and written, the weight is read once."""
    size = rows * width
    moved = size * dtype.itemsize * (3 if residual else 1) + width * dtype.itemsize
    moved += size * (quantized or dtype).itemsize + (4 * rows if quantized else 0)
    return Cost(flops=(5 + residual + 2 * (quantized is not None)) * size, moved=moved)
