"""`paged_attention` for few query rows on a CPU: reads keys and values where they are, page by page.

The reference gathers all pages of all sequences into one padded tensor for every layer; this implementation copies
nothing and visits exactly the positions that are seen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from tessera_kernels.cpu.compiled import REDUCTIONS, available, compiled
from tessera_kernels.paged_attention import reference
from tessera_kernels.paged_attention.ragged import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = import_module("numpy") if available() else None

MAX_COMPILED_ROWS = 16
"""Query rows of one sequence up to which compiled code is faster than the reference's matrix products."""


def suited(query_TQD: torch.Tensor, cache: PagedKV) -> bool:
    """Whether this implementation can run: float32 on a CPU, the cache in float32 or int8."""
    if not available() or query_TQD.device.type != "cpu" or query_TQD.dtype != torch.float32:
        return False
    return cache.key_PSHD.dtype in {torch.float32, torch.int8} and cache.value_PSHE.dtype == cache.key_PSHD.dtype


def paged_attention(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
) -> torch.Tensor:
    """Sequences with few rows run as compiled code, those with many by the reference.

    Arguments and result are those of `tessera_kernels.paged_attention.paged_attention`.
    """
    out_TQE = query_TQD.new_empty(*query_TQD.shape[:2], cache.value_PSHE.shape[-1])
    counts = np.array(ragged.query_counts)
    few = (counts > 0) & (counts <= MAX_COMPILED_ROWS)
    ends = counts.cumsum()
    if few.any():
        sequences = np.repeat(np.arange(len(counts)), counts)
        rows = np.flatnonzero(few[sequences])
        behind = ends[sequences[rows]] - 1 - rows  # rows of the same sequence after this one
        attend(
            query_TQD,
            cache,
            ragged.page_table_BM,
            rows,
            sequences[rows],
            ragged.context_B.numpy()[sequences[rows]] - behind,
            out_TQE,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks_Q=sinks_Q,
        )
    for sequence in np.flatnonzero(counts > MAX_COMPILED_ROWS):
        own_rows = slice(ends[sequence] - counts[sequence], ends[sequence])
        single = replace(
            ragged,
            page_table_BM=ragged.page_table_BM[sequence : sequence + 1],
            context_B=ragged.context_B[sequence : sequence + 1],
            query_counts=[int(counts[sequence])],
        )
        out_TQE[own_rows] = reference.paged_attention(
            query_TQD[own_rows],
            cache,
            single,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks_Q=sinks_Q,
        )
    return out_TQE


def attend(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    page_table_BM: torch.Tensor,
    rows_N: npt.NDArray[np.int64],
    sequence_N: npt.NDArray[np.int64],
    context_N: npt.NDArray[np.int64],
    out_TQE: torch.Tensor,
    *,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
) -> None:
    """Compute the query rows `rows_N` and write them to `out_TQE`.

    Args:
        query_TQD: float32 queries.
        cache: keys and values, float32 or int8 with scales.
        page_table_BM: int32 page indices.
        rows_N: indices of the query rows to compute.
        sequence_N: each row's sequence, a row of the page table.
        context_N: positions that each row sees, its own included.
        out_TQE: float32; other rows are not touched.
        scaling, sliding_window, softcap, sinks_Q: those of `tessera_kernels.paged_attention.paged_attention`.
    """
    sinks = np.zeros(0, np.float32) if sinks_Q is None else sinks_Q.float().contiguous().numpy()
    scales = [
        np.zeros((0, 0, 0), np.float32) if scale is None else scale.numpy()
        for scale in (cache.key_scale_PSH, cache.value_scale_PSH)
    ]
    _attend(
        query_TQD.contiguous().numpy(),
        cache.key_PSHD.numpy(),
        cache.value_PSHE.numpy(),
        *scales,
        page_table_BM.numpy(),
        rows_N,
        sequence_N,
        context_N,
        np.float32(scaling),
        0 if sliding_window is None else sliding_window,
        np.float32(0.0 if softcap is None else softcap),
        sinks,
        out_TQE.numpy(),
    )


@compiled(REDUCTIONS)
def _attend(  # type: ignore[no-untyped-def]
    query_TQD,
    key_PSHD,
    value_PSHE,
    key_scale_PSH,
    value_scale_PSH,
    table_BM,
    rows_N,
    sequence_N,
    context_N,
    scaling,
    window,
    softcap,
    sinks_Q,
    out_TQE,
):
    size, kv_heads, dim = key_PSHD.shape[1], key_PSHD.shape[2], key_PSHD.shape[3]
    value_dim = value_PSHE.shape[3]
    scaled = key_scale_PSH.shape[0] > 0
    groups = query_TQD.shape[1] // kv_heads
    longest = 0
    for n in range(len(rows_N)):
        longest = max(longest, context_N[n])
    scores_GL = np.empty((groups, longest), np.float32)
    largest_G = np.empty(groups, np.float32)
    for n in range(len(rows_N)):
        row, context = rows_N[n], context_N[n]
        pages = table_BM[sequence_N[n]]
        first = max(0, context - window) if window > 0 else 0
        for head in range(kv_heads):
            begin = head * groups
            for g in range(groups):
                largest_G[g] = sinks_Q[begin + g] if len(sinks_Q) else -np.inf
            for page in range(first // size, (context - 1) // size + 1):
                keys = key_PSHD[pages[page]]
                for slot in range(max(0, first - page * size), min(size, context - page * size)):
                    for g in range(groups):
                        total = np.float32(0)
                        for d in range(dim):
                            total += query_TQD[row, begin + g, d] * np.float32(keys[slot, head, d])
                        total *= scaling
                        if scaled:
                            total *= key_scale_PSH[pages[page], slot, head]
                        if softcap > 0:
                            total = softcap * np.float32(math.tanh(total / softcap))
                        scores_GL[g, page * size + slot] = total
                        # `not <=` keeps NaN, so that an overflow stays visible.
                        if not total <= largest_G[g]:
                            largest_G[g] = total
            for g in range(groups):
                weight = np.float32(0)
                if len(sinks_Q):
                    weight = np.exp(sinks_Q[begin + g] - largest_G[g])
                for at in range(first, context):
                    scores_GL[g, at] = np.exp(scores_GL[g, at] - largest_G[g])
                    weight += scores_GL[g, at]
                for at in range(first, context):
                    scores_GL[g, at] /= weight
                for e in range(value_dim):
                    out_TQE[row, begin + g, e] = 0
            for page in range(first // size, (context - 1) // size + 1):
                values = value_PSHE[pages[page]]
                for slot in range(max(0, first - page * size), min(size, context - page * size)):
                    for g in range(groups):
                        share = scores_GL[g, page * size + slot]
                        if scaled:
                            share *= value_scale_PSH[pages[page], slot, head]
                        for e in range(value_dim):
                            out_TQE[row, begin + g, e] += share * np.float32(values[slot, head, e])
