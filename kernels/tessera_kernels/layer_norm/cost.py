"""What `layer_norm` and its variants cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(
    rows: int,
    channels: int,
    dtype: torch.dtype,
    *,
    vectors: int = 0,
    modulations: int = 0,
    modulated_rows: int = 1,
    modulation: torch.dtype = torch.float32,
    added: bool = False,
) -> Cost:
    """Of one normalization: x is read and the result written; what is added is read and the sum written too.

    Args:
        rows: samples times tokens.
        channels: of a row.
        dtype: of x, the vectors and the result.
        vectors: how many of weight and bias there are.
        modulations: how many of scale, shift and gate there are.
        modulated_rows: rows of each modulation, samples or samples times tokens.
        modulation: their dtype.
        added: whether something is added before.
    """
    size = rows * channels
    moved = size * dtype.itemsize * (4 if added else 2) + vectors * channels * dtype.itemsize
    moved += modulations * modulated_rows * channels * modulation.itemsize
    return Cost(flops=(7 + vectors + modulations + added) * size, moved=moved)


def residual_cost(
    rows: int, channels: int, dtype: torch.dtype, *, modulated_rows: int = 1, modulation: torch.dtype = torch.float32
) -> Cost:
    """Of a gated residual alone: both are read, the sum is written."""
    size = rows * channels
    moved = 3 * size * dtype.itemsize + modulated_rows * channels * modulation.itemsize
    return Cost(flops=2 * size, moved=moved)
