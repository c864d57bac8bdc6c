"""`paged_attention` in plain torch: decodes are one padded batch, each prefill chunk is computed by itself.

The softmax is in float32, so that this is also the reference for low-precision kernels.
"""

from __future__ import annotations

import torch

from tessera_kernels.paged_attention.ragged import Ragged
from tessera_kernels.storage.paged_kv import PagedKV, dequantize


def paged_attention(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
    tree_BNN: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reference of `tessera_kernels.paged_attention.paged_attention`."""
    device = query_TQD.device
    page_size = cache.key_PSHD.shape[1]
    out_TQE = query_TQD.new_empty(*query_TQD.shape[:2], cache.value_PSHE.shape[-1])
    decodes = [(b, row) for b, row, count in _row_ranges(ragged.query_counts) if count == 1]
    groups = [([b for b, _ in decodes], [row for _, row in decodes], 1)] if decodes else []
    groups += [
        ([b], list(range(row, row + count)), count) for b, row, count in _row_ranges(ragged.query_counts) if count > 1
    ]
    for sequences, rows, count in groups:
        sequences_G = torch.tensor(sequences, device=device)
        rows_R = torch.tensor(rows, device=device)
        context_G = ragged.context_B[sequences_G]
        longest = int(context_G.max())
        pages_GM = ragged.page_table_BM[sequences_G, : -(-longest // page_size)]
        key_GLHD = _gathered(cache.key_PSHD, cache.key_scale_PSH, pages_GM, query_TQD.dtype)[:, :longest]
        value_GLHE = _gathered(cache.value_PSHE, cache.value_scale_PSH, pages_GM, query_TQD.dtype)[:, :longest]
        query_GNQD = query_TQD[rows_R].view(len(sequences), count, *query_TQD.shape[1:])
        position_L = torch.arange(longest, device=device)
        # Slots past a context may hold what an overflow left there, and 0 · NaN is NaN.
        value_GLHE.masked_fill_((position_L >= context_G[:, None])[..., None, None], 0)
        own_GN = context_G[:, None] - count + torch.arange(count, device=device)
        seen_GNL = position_L <= own_GN[..., None]
        if tree_BNN is not None:
            seen_GNL = _seen_in_tree(tree_BNN[sequences_G], context_G, count, longest)
        if sliding_window is not None:
            seen_GNL &= position_L > own_GN[..., None] - sliding_window
        result_GNQE = _attend(query_GNQD, key_GLHD, value_GLHE, seen_GNL, scaling, softcap, sinks_Q)
        out_TQE[rows_R] = result_GNQE.flatten(0, 1).to(out_TQE.dtype)
    return out_TQE


def _gathered(
    stored_PSHD: torch.Tensor, scale_PSH: torch.Tensor | None, pages_GM: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Keys or values of some pages one after another, dequantized, [sequences, positions, heads, dim]."""
    kind = torch.int8 if stored_PSHD.dtype.itemsize == 1 else stored_PSHD.dtype
    elements_GMSHD = stored_PSHD.view(kind)[pages_GM].view(stored_PSHD.dtype)
    return dequantize(elements_GMSHD, None if scale_PSH is None else scale_PSH[pages_GM], dtype).flatten(1, 2)


def _seen_in_tree(tree_GNN: torch.Tensor, context_G: torch.Tensor, count: int, longest: int) -> torch.Tensor:
    """Mask of the positions that rows see, [sequences, count, longest]: all before this step, and those of the tree."""
    draft_GL = torch.arange(longest, device=tree_GNN.device) - (context_G[:, None] - count)
    inside_GL = (draft_GL >= 0) & (draft_GL < count)
    index_GNL = draft_GL.clamp(0, count - 1)[:, None].expand(-1, count, -1)
    seen_GNL = tree_GNN[:, :count, :count].gather(2, index_GNL) & inside_GL[:, None]
    return seen_GNL | (draft_GL < 0)[:, None]


def _row_ranges(query_counts: list[int]) -> list[tuple[int, int, int]]:
    """(sequence, first row, number of rows) of every sequence that has rows."""
    ranges, row = [], 0
    for b, count in enumerate(query_counts):
        if count:
            ranges.append((b, row, count))
        row += count
    return ranges


def _attend(
    query_GNQD: torch.Tensor,
    key_GLHD: torch.Tensor,
    value_GLHE: torch.Tensor,
    seen_GNL: torch.Tensor,
    scaling: float,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
) -> torch.Tensor:
    batch, count, heads, dim = query_GNQD.shape
    kv_heads = key_GLHD.shape[2]
    groups = heads // kv_heads
    # [G, H, groups*N, D]: the query heads of one key-value head are adjacent, so keys are not repeated in memory.
    query = query_GNQD.view(batch, count, kv_heads, groups, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    key, value = key_GLHD.permute(0, 2, 3, 1), value_GLHE.transpose(1, 2)
    scores = torch.matmul(query, key).float() * scaling
    scores = scores.view(batch, kv_heads, groups, count, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen_GNL[:, None, None], float("-inf"))
    if sinks_Q is not None:
        sink = sinks_Q.float().view(1, -1, groups, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    result = torch.matmul(weights.flatten(2, 3).to(value.dtype), value)  # [G, H, groups*N, E]
    return result.view(batch, kv_heads, groups, count, -1).permute(0, 3, 1, 2, 4).flatten(2, 3)
