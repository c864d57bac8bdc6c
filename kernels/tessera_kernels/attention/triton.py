"""Launches `attention`: quantizes inputs if asked, and chooses the sizes of tiles.

Shape letters are those of `tessera_kernels.attention`. Knows nothing of how a tile is computed; `kernel` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from tessera_kernels.attention.kernel import attention_kernel
from tessera_kernels.attention.quantize import center_of, float8_channels, int8_blocks
from tessera_kernels.chips import Chip, chip_of
from tessera_kernels.tuning import device_here, lookup

QUERY_ROWS, KEY_ROWS = 128, 64
"""Number of tokens that share an int8 scale."""


def block(dim: int) -> int:
    """Elements of a row, padded to a block of a matrix instruction; int8 and float8 need at least 32."""
    return max(32, 1 << (dim - 1).bit_length())


def scheme(dtype: torch.dtype, *, int8_scores: bool, float8_values: bool) -> str:
    """Name of dtype and quantization, under which tuned files list configurations in place of a dtype."""
    kind = str(dtype).removeprefix("torch.")
    return kind + ("_int8" if int8_scores else "") + ("_float8" if float8_values else "")


SMALL_SHARED_BYTES = 128 * 1024
"""Shared memory of a program below which a chip counts as small: Ada (99 KiB), but not Ampere for servers (163 KiB)."""


def config(dim: int, queries: int, dtype: torch.dtype, chip: Chip, *, int8: bool, float8: bool) -> dict[str, int]:
    """The launch configuration: queries of a tile (at most `QUERY_ROWS`), keys of a block, warps and stages.

    Args:
        dim: features of a head.
        queries: query tokens of a sequence.
        dtype: dtype of the inputs before they are quantized.
        chip: the chip to launch on.
        int8: whether scores are computed in int8.
        float8: whether values are float8.
    """
    kind = scheme(dtype, int8_scores=int8, float8_values=float8)
    found = lookup("attention", device_here(), kind, f"D{dim} {'few' if queries <= 64 else 'many'}")
    if found is not None:
        return found
    wide = block(dim) > 128
    rows, keys, stages = 64 if queries <= 64 or wide else 128, 64, 2
    if chip.capability >= 90 and not wide:
        # int8 products are int32 tiles and stay in registers beside their float32 scores.
        keys, stages = 128 if not int8 and (rows == 128 or block(dim) == 64) else 64, 3
    elif chip.capability < 90 and (wide or (block(dim) == 128 and (rows == 64 or chip.shared < SMALL_SHARED_BYTES))):
        # Two stages of 64 keys do not fit beside so many queries, and one of them spills.
        keys = 32
    if chip.backend == "hip":
        stages = 1
    if dtype == torch.float32:
        # float32 has no matrix units: the operands of a thread must fit its registers.
        rows, keys, stages = 16, 16, 1
    warps = 8 if rows == 128 or wide else 4
    size = dtype.itemsize
    of_key, of_value = (1 if int8 else size), (1 if float8 else size)

    def shared() -> int:
        return block(dim) * (stages * keys * (of_key + of_value) + rows * of_key) + rows * keys * of_value

    while shared() > chip.shared and stages > 1:
        stages -= 1
    while shared() > chip.shared and keys > 16:
        keys //= 2
    return {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}


def attention(
    query_BTHD: torch.Tensor,
    key_BSHD: torch.Tensor,
    value_BSHD: torch.Tensor,
    *,
    scaling: float,
    lengths_B: torch.Tensor | None = None,
    int8_scores: bool = False,
    float8_values: bool = False,
    out_BTHD: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.attention.attention`.

    Args:
        query_BTHD, key_BSHD, value_BSHD, lengths_B, int8_scores, float8_values: as in the public function.
        scaling: factor on the scores.
        out_BTHD: tensor to write the result to; a new one if not given.
        configuration: launch configuration; the result of `config` if not given.
    """
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query_BTHD, key_BSHD, value_BSHD))
    batch, queries, heads, dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out_BTHD is None else out_BTHD
    if not out.numel():
        return out
    how = configuration or config(
        dim, queries, query.dtype, chip_of(query.device), int8=int8_scores, float8=float8_values
    )
    keys = key.shape[1]
    query_scale = key_scale = value_scale = None
    if float8_values:
        transposed, value_scale = float8_channels(value, lengths_B=lengths_B)
        value = transposed.permute(0, 3, 1, 2)
    if int8_scores:
        center = center_of(key, lengths_B)
        quantized, key_scale = int8_blocks(key, KEY_ROWS, center_BHD=center, lengths_B=lengths_B)
        key = quantized.transpose(1, 2)
        quantized, query_scale = int8_blocks(query, QUERY_ROWS)
        query = quantized.transpose(1, 2)
    attention_kernel[(triton.cdiv(queries, how["BLOCK_M"]), batch * heads)](
        query,
        key,
        value,
        query_scale,
        key_scale,
        value_scale,
        lengths_B,
        out,
        queries,
        keys,
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride(),
        *out.stride()[:3],
        scaling,
        HEADS=heads,
        DIM=dim,
        BLOCK_D=block(dim),
        QUERY_ROWS=QUERY_ROWS,
        KEY_ROWS=KEY_ROWS,
        FLOAT8=float8_values,
        INTERPRETED=triton.knobs.runtime.interpret,
        **how,
    )
    return out
