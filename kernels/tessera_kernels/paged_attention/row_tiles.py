"""How query rows of a ragged batch are cut into tiles, made on the host from the counts alone.

A tile has rows of one sequence: some tokens with all query heads of a key-value head. Does not know how long contexts
are: those are on the device, and reading them would wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

COLUMNS = 5
"""Of the tile table: sequence, first row, its index in the sequence, rows of the sequence, place of its parts or -1."""


@dataclass(frozen=True)
class RowTiles:
    """Tiles of a batch.

    Attributes:
        count: of tiles.
        tiles: int32 [count, COLUMNS]; None if tile i is the whole of sequence i and all have equally many rows.
        split_rows: int32, rows of sequences that are one tile: their positions may be split. None if that is all rows.
        splits: how many rows those are.
    """

    count: int
    tiles: torch.Tensor | None
    split_rows: torch.Tensor | None
    splits: int


@lru_cache(maxsize=16)
def cut_tiles(counts: tuple[int, ...], tokens: int, device: torch.device) -> RowTiles:
    """Cut sequences into tiles of at most `tokens` rows. Kept, because every layer of a step asks for the same.

    Args:
        counts: rows of each sequence.
        tokens: of a tile.
        device: where the tables are needed.
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
            # The last tile sees the most: it begins first.
            tiles += [(sequence, row + i, i, count, -1) for i in reversed(range(0, count, tokens))]
        row += count
    return RowTiles(
        len(tiles), _sent(tiles, device), _sent(split_rows, device) if split_rows else None, len(split_rows)
    )


def _sent(numbers: list[tuple[int, int, int, int, int]] | list[int], device: torch.device) -> torch.Tensor:
    host = torch.tensor(numbers, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
