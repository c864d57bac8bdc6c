"""What `combine` cannot do without; the products of `moe` are counted by `grouped_gemm`."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def combine_cost(tokens: int, chosen: int, features: int, dtype: torch.dtype) -> Cost:
    """Reading every assignment's row and writing every token's."""
    moved = tokens * (chosen + 1) * features * dtype.itemsize + tokens * chosen * 8
    return Cost(2.0 * tokens * chosen * features, moved, "fp32")
