"""Least FLOPs and bytes of `latent_attention`, for the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera_kernels.roofline import Cost

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def cost(sequences: Sequence[tuple[int, int]], heads: int, rank: int, rope: int, dtype: torch.dtype) -> Cost:
    """Cost of one call: dot products of C and of R elements for each pair of a row and a position it sees.

    Every position of the cache is read once.

    Args:
        sequences: context length and number of query rows of each sequence.
        heads: query heads.
        rank: elements of the latent of a slot (R).
        rope: elements of the rotated key of a slot (O).
        dtype: dtype of queries, cache and output.
    """
    pairs = sum(sum(range(context - count + 1, context + 1)) for context, count in sequences)
    positions, rows = (sum(of) for of in zip(*sequences, strict=True))
    moved = (positions * (rank + rope) + rows * heads * (2 * rank + rope)) * dtype.itemsize
    return Cost(2 * pairs * heads * (2 * rank + rope), moved, UNITS[dtype])
