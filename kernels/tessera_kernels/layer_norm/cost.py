"""Least FLOPs and bytes of `layer_norm` and its variants, for the roofline."""

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
    """Cost of one normalization: x is read and the result written; with `added`, that is read and the sum written.

    Args:
        rows: samples times tokens.
        channels: channels of a row.
        dtype: dtype of x, weight, bias and the result.
        vectors: number of vectors, of weight and bias.
        modulations: number of modulations, of scale, shift and gate.
        modulated_rows: rows of each modulation: samples, or samples times tokens.
        modulation: dtype of the modulations.
        added: whether a gated residual is added first.
    """
    size = rows * channels
    moved = size * dtype.itemsize * (4 if added else 2) + vectors * channels * dtype.itemsize
    moved += modulations * modulated_rows * channels * modulation.itemsize
    return Cost(flops=(7 + vectors + modulations + added) * size, moved=moved)


def residual_cost(
    rows: int, channels: int, dtype: torch.dtype, *, modulated_rows: int = 1, modulation: torch.dtype = torch.float32
) -> Cost:
    """Cost of a gated residual alone: both inputs are read, the sum is written."""
    size = rows * channels
    moved = 3 * size * dtype.itemsize + modulated_rows * channels * modulation.itemsize
    return Cost(flops=2 * size, moved=moved)
