"""Least FLOPs and bytes of `combine`, for the roofline; `grouped_gemm` counts the products of `moe`."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def combine_cost(tokens: int, chosen: int, features: int, dtype: torch.dtype) -> Cost:
    """Cost of one call: the row of every assignment is read, the row of every token is written."""
    moved = tokens * (chosen + 1) * features * dtype.itemsize + tokens * chosen * 8
    return Cost(2.0 * tokens * chosen * features, moved, "fp32")
