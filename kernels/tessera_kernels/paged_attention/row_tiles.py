"""Cuts the query rows of a ragged batch into tiles, on the host, from the counts alone.

A tile has rows of one sequence: some tokens with all query heads of a key-value head. Knows nothing about the lengths
of contexts: those are on the device, and reading them would wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

COLUMNS = 5
"""Columns of the tile table: sequence, first row in the batch, its index in the sequence, rows of the sequence, and the
index of its first row among the split rows, or -1."""


@dataclass(frozen=True)
class RowTiles:
    """The tiles of a batch.

    Attributes:
        count: number of tiles.
        tiles: int32 [count, COLUMNS]; None if tile i is all of sequence i and all sequences have equally many rows.
        split_rows: int32, rows of sequences that are one tile, whose positions may be split into parts; None if these
            are all rows.
        splits: number of those rows.
    """

    count: int
    tiles: torch.Tensor | None
    split_rows: torch.Tensor | None
    splits: int


@lru_cache(maxsize=16)
def cut_tiles(counts: tuple[int, ...], tokens: int, device: torch.device) -> RowTiles:
    """Cut sequences into tiles of at most `tokens` tokens. Cached, because every layer of a step needs the same tiles.

    Args:
        counts: tokens of each sequence in this step.
        tokens: tokens of a tile at most.
        device: device of the returned tables.
    """
    if min(counts) == max(counts) <= tokens:
        return RowTiles(len(counts), None, None, sum(counts))
    tiles: list[tuple[int, int, int, int, int]] = []
    split_rows: list[int] = []
    row = 0
    for sequence, count in enumerate(counts):
        if 0 < count <= tokens:
            tiles.append((sequence, row, 0, count, len(split_rows)))
            split_rows += range(row, row + count)
        else:
            # The last tile sees the most positions, so it starts first.
            tiles += [(sequence, row + i, i, count, -1) for i in reversed(range(0, count, tokens))]
        row += count
    return RowTiles(
        len(tiles), _on_device(tiles, device), _on_device(split_rows, device) if split_rows else None, len(split_rows)
    )


def _on_device(values: list[tuple[int, int, int, int, int]] | list[int], device: torch.device) -> torch.Tensor:
    host = torch.tensor(values, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
