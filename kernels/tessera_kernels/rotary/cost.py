"""Least FLOPs and bytes of `rotary`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(tokens: int, heads: int, pairs: int, dtype: torch.dtype, *, table: int = 0, axes: int = 1) -> Cost:
    """Cost of one call: every rotated pair is read and written.

    Args:
        tokens: number of tokens.
        heads: query heads and key heads together.
        pairs: rotated pairs of each head.
        dtype: dtype of queries and keys.
        table: bytes of an element of the tables; 0 if angles are computed.
        axes: coordinates of a position, if angles are computed.
    """
    rotated = tokens * heads * pairs
    angles = 2 * tokens * pairs * table if table else 8 * tokens * axes + 4 * pairs
    return Cost(flops=6 * rotated, moved=4 * rotated * dtype.itemsize + angles)
