"""What `latent_attention` takes at least, for the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera_kernels.roofline import Cost

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def cost(sequences: Sequence[tuple[int, int]], heads: int, rank: int, rope: int, dtype: torch.dtype) -> Cost:
    """A product with C and one with R numbers for each pair of a row and a position; every position is read once.

    Args:
        sequences: (context, query rows) of each.
        heads: of queries.
        rank, rope: of a slot.
        dtype: of all.
    """
    pairs = sum(sum(range(context - count + 1, context + 1)) for context, count in sequences)
    positions, rows = (sum(of) for of in zip(*sequences, strict=True))
    moved = (positions * (rank + rope) + rows * heads * (2 * rank + rope)) * dtype.itemsize
    return Cost(2 * pairs * heads * (2 * rank + rope), moved, UNITS[dtype])
