"""Launches `paged_attention`: chooses the size of tiles and the number of parts of the positions, and runs two passes.

Shape letters as in `tessera_kernels.paged_attention`; C parts. Knows nothing about the computation of a tile.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from tessera_kernels.chips import Chip, chip_of, multiprocessors_of
from tessera_kernels.paged_attention.kernel import paged_attention_kernel
from tessera_kernels.paged_attention.row_tiles import cut_tiles
from tessera_kernels.storage.paged_kv import PagedKV
from tessera_kernels.triton_parts.split_combine import parts_of, split_combine
from tessera_kernels.tuning import device_here, lookup

MIN_TILE_ROWS, MAX_TILE_ROWS = 16, 128
"""Rows of a tile: what a matrix instruction needs at least, and what a program's registers hold at most."""


def block(dim: int) -> int:
    """Smallest block of a matrix instruction that holds `dim` elements: a power of two, at least 16."""
    return max(MIN_TILE_ROWS, 1 << (dim - 1).bit_length())


def bucket(rows: int, dim: int, stored: torch.dtype) -> str:
    """Key of tuned configurations: rows of a tile, head dim and dtype of the cache."""
    return f"M{rows} D{dim} {str(stored).removeprefix('torch.')}"


def rows_of_tile(most: int, groups: int, dim: int, dtype: torch.dtype, *, tree: bool = False) -> int:
    """Rows of a tile: `groups` query heads of a key-value head for each of at most `most` tokens of a sequence."""
    # More rows would not fit the registers with wide heads or a tree's mask; float32 has no matrix units.
    widest = MAX_TILE_ROWS if block(dim) <= 128 and not tree else 64
    if dtype == torch.float32:
        widest = MIN_TILE_ROWS
    return min(block(most * groups), max(widest, block(groups)))


def config(
    rows: int, dims: tuple[int, int], dtype: torch.dtype, stored: torch.dtype, chip: Chip, *, tree: bool = False
) -> dict[str, int]:
    """Launch configuration: positions of a block, warps and stages; a tuned one if there is one, else the heuristic's.

    Args:
        rows: rows of a tile.
        dims: head dims of keys and of values.
        dtype: dtype of the queries.
        stored: dtype of the cache.
        chip: the device's chip.
        tree: whether rows are masked by a draft tree.
    """
    kind = str(dtype).removeprefix("torch.")
    # Configurations are tuned without a tree, and may not fit the registers with one.
    tuned = None if tree else lookup("paged_attention", device_here(), kind, bucket(rows, dims[0], stored))
    if tuned is not None:
        return tuned
    wide = max(block(dim) for dim in dims) > 128
    older = chip.backend == "cuda" and chip.capability < 90
    positions, warps, stages = (64, 4, 3) if rows < 64 else (64, 8 if rows * block(dims[1]) > 8192 else 4, 2)
    if wide or tree or (older and rows > MIN_TILE_ROWS):
        positions = 32
    if tree and rows == 64:
        warps = 8
    if older and rows > MIN_TILE_ROWS:
        stages = 2
    if chip.backend == "hip":
        stages = 2 if rows < 64 else 1
    if rows == MAX_TILE_ROWS and stored != dtype and (older or chip.backend == "hip"):
        positions = 16
    if older and wide and (rows == 32 or (rows == 64 and stored != dtype)):
        positions = 16
    if dtype == torch.float32:
        positions = 16

    def shared() -> int:
        keys = sum(block(dim) for dim in dims) * positions
        # A cache of another dtype is converted to the queries' dtype for the matrix units.
        converted = keys * dtype.itemsize if stored != dtype else 0
        return stages * keys * stored.itemsize + converted + rows * (block(dims[0]) + positions) * dtype.itemsize

    while shared() > chip.shared and stages > 1:
        stages -= 1
    while shared() > chip.shared and positions > MIN_TILE_ROWS:
        positions //= 2
    return {"BLOCK_N": positions, "num_warps": warps, "num_stages": stages}


def paged_attention(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    page_table_BM: torch.Tensor,
    context_B: torch.Tensor,
    counts: list[int],
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks_Q: torch.Tensor | None = None,
    tree_BNN: torch.Tensor | None = None,
    out_TQE: torch.Tensor | None = None,
    parts: int | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.paged_attention.paged_attention`.

    Args:
        query_TQD, cache: as in the public function.
        page_table_BM, context_B, counts: the fields of `Ragged`.
        scaling, sliding_window, softcap, sinks_Q, tree_BNN: as in the public function.
        out_TQE: tensor to write the result to; a new one if not given.
        parts: number of parts, a power of two, into which the positions of sequences of one tile are split; as many as
            give the device enough programs if not given.
        configuration: launch configuration; the result of `config` if not given.
    """
    query = query_TQD if query_TQD.stride(-1) == 1 else query_TQD.contiguous()
    tokens, heads, dim = query.shape
    _, size, kv_heads, value_dim = cache.value_PSHE.shape
    out = query.new_empty(tokens, heads, value_dim) if out_TQE is None else out_TQE
    if not tokens:
        return out
    groups, device, stored = heads // kv_heads, query.device, cache.key_PSHD.dtype
    drafts = tree_BNN is not None
    rows = rows_of_tile(max(counts), groups, max(dim, value_dim), query.dtype, tree=drafts)
    tiles = cut_tiles(tuple(counts), rows // groups, device)
    how = dict(configuration or config(rows, (dim, value_dim), query.dtype, stored, chip_of(device), tree=drafts))
    longest = page_table_BM.shape[1] * size
    if sliding_window is not None:
        longest = min(longest, sliding_window + max(counts))
    if parts is None:
        parts = parts_of(tiles.count * kv_heads, longest, multiprocessors_of(device))
    parts = parts if tiles.splits else 1
    partial = lse = None
    if parts > 1:
        partial = torch.empty(tiles.splits, parts, heads, value_dim, dtype=torch.float32, device=device)
        lse = torch.empty(tiles.splits, parts, heads, dtype=torch.float32, device=device)
    tree = None if tree_BNN is None else tree_BNN.contiguous().view(torch.uint8)
    paged_attention_kernel[(tiles.count, kv_heads, parts)](
        query,
        cache.key_PSHD,
        cache.value_PSHE,
        cache.key_scale_PSH,
        cache.value_scale_PSH,
        page_table_BM,
        context_B,
        tiles.tiles,
        tree,
        sinks_Q,
        out,
        partial,
        lse,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        page_table_BM.stride(0),
        0 if tree is None else tree.shape[1],
        max(counts),
        scaling,
        sliding_window or 0,
        softcap or 0.0,
        **constants(groups, kv_heads, (dim, value_dim), size, rows),
        PARTS=parts,
        WINDOW=sliding_window is not None,
        SOFTCAP=softcap is not None,
        INTERPRETED=triton.knobs.runtime.interpret,
        **how,
    )
    if partial is not None and lse is not None:
        split_combine(partial, lse, tiles.split_rows, sinks_Q, out)
    return out


def constants(groups: int, kv_heads: int, dims: tuple[int, int], page: int, rows: int) -> dict[str, int]:
    """The compile-time constants of the kernel that follow from shapes."""
    return {
        "HEADS": kv_heads,
        "GROUPS": groups,
        "DIM": dims[0],
        "VALUE_DIM": dims[1],
        "PAGE": page,
        "BLOCK_M": rows,
        "BLOCK_D": block(dims[0]),
        "BLOCK_E": block(dims[1]),
    }
