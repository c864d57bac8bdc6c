"""The least work of `paged_attention`, for the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.storage.paged_kv import slot_bytes

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def cost(
    sequences: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    stored: torch.dtype,
    *,
    sliding_window: int | None = None,
) -> Cost:
    """Two products for each pair of a row and a position that it sees; each position that is seen is read once.

    Args:
        sequences: (context, query rows) of each sequence.
        heads: query heads and key-value heads.
        dims: head dims of keys and of values.
        dtype: dtype of the queries and of the result.
        stored: dtype of the cache.
        sliding_window: positions that a row sees at most; None for all.
    """
    pairs = positions = rows = 0
    for context, count in sequences:
        seen = [min(own, sliding_window or own) for own in range(context - count + 1, context + 1)]
        pairs += sum(seen)
        positions += min(context, seen[0] + count - 1) if count else 0
        rows += count
    moved = positions * slot_bytes(heads[1], dims, stored) + rows * heads[0] * sum(dims) * dtype.itemsize
    return Cost(2 * pairs * heads[0] * sum(dims), moved, UNITS[dtype])
