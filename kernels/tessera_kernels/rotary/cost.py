"""What `rotary` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(tokens: int, heads: int, pairs: int, dtype: torch.dtype, *, table: int = 0, axes: int = 1) -> Cost:
    """Of one call.

    Args:
        tokens: rows.
        heads: of queries and keys together.
        pairs: turned in each head; all of them are read and written.
        dtype: of queries and keys.
        table: bytes of a number of the tables; 0 where angles are computed.
        axes: numbers of a position, where angles are computed.
    """
    turned = tokens * heads * pairs
    angles = 2 * tokens * pairs * table if table else 8 * tokens * axes + 4 * pairs
    return Cost(flops=6 * turned, moved=4 * turned * dtype.itemsize + angles)
