"""Least FLOPs and bytes of `gated_activation`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(rows: int, inner: int, dtype: torch.dtype, *, quantized: torch.dtype | None = None) -> Cost:
    """Cost of one call: gate and up are read, the result is written, with a scale for each row if it is quantized."""
    size = rows * inner
    moved = 2 * size * dtype.itemsize + size * (quantized or dtype).itemsize + (4 * rows if quantized else 0)
    return Cost(flops=(6 + 2 * (quantized is not None)) * size, moved=moved)
