# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`latent_attention` on a GPU: the latent of a position is read once, for its score and for the weighted sum.

A program computes some heads of one query row over a part of the positions; `split_combine` combines the parts.
Shape letters are those of `tessera_kernels.latent_attention`; M heads of a tile, N positions of a block.
Makes no difference between draft tokens and decode steps: a row has a sequence and a number of positions it sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
import triton
import triton.language as tl

from tessera_kernels.chips import Chip, chip_of, multiprocessors_of
from tessera_kernels.paged_attention.ragged import Ragged
from tessera_kernels.triton_parts.split_combine import parts_of, split_combine
from tessera_kernels.tuning import device_here, lookup


@triton.jit
def latent_attention_kernel(
    p_query,
    p_rope,
    p_cache,
    p_table,
    p_context,
    p_rows,
    p_partial,
    p_lse,
    query_stride_t,
    query_stride_q,
    rope_stride_t,
    rope_stride_q,
    table_stride,
    rows,
    scaling,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Compute a tile of heads of one row over a part of its positions.

    Without `p_rows`, every sequence has `rows` query rows.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0)
    part = tl.program_id(2)
    if p_rows is None:
        sequence = row // rows
        behind = rows - 1 - row % rows
    else:
        sequence = tl.load(p_rows + row * 2)
        behind = tl.load(p_rows + row * 2 + 1)
    seen = tl.load(p_context + sequence).to(tl.int32) - behind
    length = tl.cdiv(tl.cdiv(seen, PARTS), BLOCK_N) * BLOCK_N
    begin = part * length
    end = tl.minimum(begin + length, seen)
    o_n = tl.arange(0, BLOCK_N)
    o_r = tl.arange(0, BLOCK_R)
    o_o = tl.arange(0, BLOCK_O)
    i_q = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    ours = (i_q < HEADS)[:, None]
    i_row = row.to(tl.int64)
    query_at = p_query + i_row * query_stride_t + i_q[:, None] * query_stride_q + o_r[None, :]
    rope_at = p_rope + i_row * rope_stride_t + i_q[:, None] * rope_stride_q + o_o[None, :]
    b_q = tl.load(query_at, mask=ours & (o_r < RANK)[None, :], other=0.0)
    b_rope = tl.load(rope_at, mask=ours & (o_o < ROPE)[None, :], other=0.0)
    b_acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    b_largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    p_pages = p_table + sequence.to(tl.int64) * table_stride
    for start in range(begin, end, BLOCK_N):
        i_n = start + o_n
        stored = i_n < end
        i_page = tl.load(p_pages + i_n // PAGE, mask=stored, other=0)
        slot_at = p_cache + ((i_page.to(tl.int64) * PAGE + i_n % PAGE) * (RANK + ROPE))[:, None]
        b_c = tl.load(slot_at + o_r[None, :], mask=stored[:, None] & (o_r < RANK)[None, :], other=0.0)
        b_k = tl.load(slot_at + RANK + o_o[None, :], mask=stored[:, None] & (o_o < ROPE)[None, :], other=0.0)
        if INTERPRETED:
            b_s = tl.dot(b_q.to(tl.float32), tl.trans(b_c.to(tl.float32)), input_precision="ieee")
            b_s += tl.dot(b_rope.to(tl.float32), tl.trans(b_k.to(tl.float32)), input_precision="ieee")
        else:
            b_s = tl.dot(b_q, tl.trans(b_c), input_precision="ieee")
            b_s = tl.dot(b_rope, tl.trans(b_k), b_s, input_precision="ieee")
        b_s = tl.where(stored[None, :], b_s * (scaling * LOG2_E), float("-inf"))
        b_new = tl.maximum(b_largest, tl.max(b_s, axis=1))
        # If all scores of a head are -inf so far, the difference would be -inf - (-inf), which is NaN.
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_rescale = tl.exp2(b_largest - b_base)
        b_sum = b_sum * b_rescale + tl.sum(b_p, axis=1)
        b_acc = b_acc * b_rescale[:, None]
        b_largest = b_new
        if INTERPRETED:
            b_acc += tl.dot(b_p.to(b_c.dtype).to(tl.float32), b_c.to(tl.float32), input_precision="ieee")
        else:
            b_acc = tl.dot(b_p.to(b_c.dtype), b_c, b_acc, input_precision="ieee")
    i_part = (i_row * PARTS + part) * HEADS + i_q
    b_lse = tl.where(b_sum == 0, float("-inf"), b_largest + tl.log2(b_sum))
    if PARTS > 1:
        tl.store(p_lse + i_part, b_lse, mask=i_q < HEADS)
    stored_to = ours & (o_r < RANK)[None, :] & (b_lse != float("-inf"))[:, None]
    b_out = (b_acc / b_sum[:, None]).to(p_partial.dtype.element_ty)
    tl.store(p_partial + i_part[:, None] * RANK + o_r[None, :], b_out, mask=stored_to)


def block(dim: int) -> int:
    """Elements of a row, padded to a block of a matrix instruction."""
    return max(16, 1 << (dim - 1).bit_length())


def config(heads: int, rank: int, dtype: torch.dtype, chip: Chip) -> dict[str, int]:
    """The launch configuration: heads of a tile, positions of a block, warps and stages.

    Args:
        heads: query heads.
        rank: elements of the latent.
        dtype: dtype of queries and cache.
        chip: the chip to launch on.
    """
    found = lookup(
        "latent_attention", device_here(), str(dtype).removeprefix("torch."), f"H{block(min(heads, 64))} R{rank}"
    )
    if found is not None:
        return found
    rows, positions, warps, stages = 16, 32, 4, 2
    if chip.capability >= 90 and heads >= 32 and dtype != torch.float32:
        # On Hopper, accumulators of 64 heads by 512 do not fit the registers; Blackwell has tensor memory for them.
        rows, positions, warps = (64, 32, 8) if chip.capability >= 100 and heads >= 64 else (32, 64, 8)
    if dtype == torch.float32:
        positions = 16
    if chip.backend == "hip":
        positions, stages = 16, 1
    return {"BLOCK_M": rows, "BLOCK_N": positions, "num_warps": warps, "num_stages": stages}


@lru_cache(maxsize=16)
def rows_of(counts: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
    """int32 [T, 2]: the sequence of each row, and how many rows of the sequence come after it.

    None if every sequence has the same number of rows.
    """
    if min(counts) == max(counts):
        return None
    rows = [(sequence, count - 1 - i) for sequence, count in enumerate(counts) for i in range(count)]
    host = torch.tensor(rows, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def latent_attention(
    query_TQR: torch.Tensor,
    rope_TQO: torch.Tensor,
    cache_PSC: torch.Tensor,
    ragged: Ragged,
    *,
    scaling: float,
    out_TQR: torch.Tensor | None = None,
    parts: int | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.latent_attention.latent_attention`.

    Args:
        query_TQR, rope_TQO, cache_PSC, ragged, scaling: as in the public function.
        out_TQR: contiguous tensor to write the result to; a new one if not given.
        parts: number of parts that positions are split into, a power of two; enough to fill the device if not given.
        configuration: launch configuration; the result of `config` if not given.
    """
    query, rope = (x if x.stride(-1) == 1 else x.contiguous() for x in (query_TQR, rope_TQO))
    tokens, heads, rank = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out_TQR is None else out_TQR
    if not tokens:
        return out
    _, size, width = cache_PSC.shape
    how = dict(configuration or config(heads, rank, query.dtype, chip_of(query.device)))
    tiles = triton.cdiv(heads, how["BLOCK_M"])
    if parts is None:
        parts = parts_of(tokens * tiles, ragged.page_table_BM.shape[1] * size, multiprocessors_of(query.device))
    partial, lse = out, None
    if parts > 1:
        partial = torch.empty(tokens, parts, heads, rank, dtype=torch.float32, device=query.device)
        lse = torch.empty(tokens, parts, heads, dtype=torch.float32, device=query.device)
    latent_attention_kernel[(tokens, tiles, parts)](
        query,
        rope,
        cache_PSC,
        ragged.page_table_BM,
        ragged.context_B,
        rows_of(tuple(ragged.query_counts), query.device),
        partial,
        lse,
        query.stride(0),
        query.stride(1),
        rope.stride(0),
        rope.stride(1),
        ragged.page_table_BM.stride(0),
        max(ragged.query_counts),
        scaling,
        HEADS=heads,
        RANK=rank,
        ROPE=width - rank,
        PAGE=size,
        PARTS=parts,
        BLOCK_R=block(rank),
        BLOCK_O=block(width - rank),
        INTERPRETED=triton.knobs.runtime.interpret,
        **how,
    )
    if lse is not None:
        split_combine(partial, lse, None, None, out)
    return out
