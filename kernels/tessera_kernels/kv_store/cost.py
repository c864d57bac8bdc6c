"""The least work of `kv_store`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.storage.paged_kv import LARGEST, slot_bytes


def cost(tokens: int, heads: int, dims: tuple[int, int], new: torch.dtype, stored: torch.dtype) -> Cost:
    """FLOPs and bytes moved: new keys, values and slot indices are read once; slots are written once."""
    elements = tokens * heads * sum(dims)
    flops = 3 * elements if stored in LARGEST else 0
    return Cost(flops, elements * new.itemsize + tokens * 8 + tokens * slot_bytes(heads, dims, stored))
