"""What `kv_store` takes at least, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.storage.paged_kv import LARGEST, slot_bytes


def cost(tokens: int, heads: int, dims: tuple[int, int], new: torch.dtype, stored: torch.dtype) -> Cost:
    """FLOPs and bytes moved: new keys and values and their slots are read once, what is stored is written once."""
    numbers = tokens * heads * sum(dims)
    flops = 3 * numbers if stored in LARGEST else 0
    return Cost(flops, numbers * new.itemsize + tokens * 8 + tokens * slot_bytes(heads, dims, stored))
