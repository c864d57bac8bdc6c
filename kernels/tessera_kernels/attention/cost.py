"""Least FLOPs and bytes of `attention`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def cost(
    batch: int, queries: int, keys: int, heads: int, dim: int, dtype: torch.dtype, *, int8_scores: bool = False
) -> Cost:
    """Cost of one call: two dot products for each pair of a query and a key; inputs and output are moved once.

    With int8 scores the unit is still that of the queries' dtype, because the product with values stays in it.
    """
    moved = batch * heads * dim * (2 * queries + 2 * keys) * dtype.itemsize
    if int8_scores:
        # Quantized queries and keys are written once and read once, one byte an element.
        moved += 2 * batch * heads * dim * (queries + keys)
    return Cost(4 * batch * heads * queries * keys * dim, moved, UNITS[dtype])
