"""Least FLOPs and bytes of `sample`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(rows: int, vocabulary: int, dtype: torch.dtype, *, penalties: bool = False) -> Cost:
    """Cost of one call if every row is read once; how often it is read depends on its filters and its logits."""
    size = rows * vocabulary
    return Cost(flops=4 * size, moved=size * (dtype.itemsize + 4 * penalties) + 48 * rows)
