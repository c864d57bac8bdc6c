"""What `sample` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(rows: int, vocabulary: int, dtype: torch.dtype, *, penalties: bool = False) -> Cost:
    """Of one call, were a row read once: how often it is read depends on the filters and on the row."""
    size = rows * vocabulary
    return Cost(flops=4 * size, moved=size * (dtype.itemsize + 4 * penalties) + 48 * rows)
