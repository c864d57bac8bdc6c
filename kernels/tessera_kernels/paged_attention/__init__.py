"""Causal attention of a ragged batch over a paged KV cache: prefill chunks and decodes in one call.

Shape letters: T query tokens of all sequences one after another, B sequences, Q query heads, H key-value heads (Q is a
multiple of H), D head dim, E value dim, P pages, S slots per page, M page-table width.
Does not know requests, and that pages may be shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch

from tessera_kernels.paged_attention import cpu, reference
from tessera_kernels.paged_kv import PagedKV

__all__ = ["Ragged", "paged_attention"]


@dataclass(frozen=True)
class Ragged:
    """Which query rows and which pages belong to which sequence. All tensors are on the cache's device.

    Attributes:
        page_table_BM: int32; entry [b, i] is the page with positions i*S … (i+1)*S-1 of sequence b; unused entries 0.
        context_B: int64; number of positions of each sequence in the cache, this step's tokens included.
        query_counts: query rows of each sequence this step; they are its last positions.
    """

    page_table_BM: torch.Tensor
    context_B: torch.Tensor
    query_counts: list[int]


class _Options(TypedDict):
    scaling: float
    sliding_window: int | None
    softcap: float | None
    sinks_Q: torch.Tensor | None


def paged_attention(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks_Q: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scaling · q kᵀ) v for each query row over its own sequence's positions up to and including its own.

    Args:
        query_TQD: queries, [tokens, query heads, head dim].
        cache: keys and values; this step's are already stored.
        ragged: which rows and pages belong together.
        scaling: factor on the scores before everything else.
        sliding_window: a row sees at most this many positions, its own included; None sees all.
        softcap: scores become softcap · tanh(score / softcap) (Gemma 2).
        sinks_Q: a learned score per head that takes part in the softmax but has no value (gpt-oss).

    Returns:
        [tokens, query heads, value dim], the queries' dtype.

    Raises:
        ValueError: head counts or dims that do not fit, or counts that do not add up to T.
    """
    heads, kv_heads = query_TQD.shape[1], cache.key_PSHD.shape[2]
    if heads % kv_heads or query_TQD.shape[2] != cache.key_PSHD.shape[3]:
        raise ValueError(
            f"queries {tuple(query_TQD.shape)} do not fit a key cache {tuple(cache.key_PSHD.shape)}: query heads must "
            "be a multiple of kv heads and head dims equal"
        )
    if sum(ragged.query_counts) != query_TQD.shape[0]:
        raise ValueError(f"query counts add up to {sum(ragged.query_counts)}, but there are {query_TQD.shape[0]} rows")
    options: _Options = {
        "scaling": scaling,
        "sliding_window": sliding_window,
        "softcap": softcap,
        "sinks_Q": sinks_Q,
    }
    if not cpu.suited(query_TQD, cache):
        return reference.paged_attention(query_TQD, cache, ragged, **options)
    out_TQE = query_TQD.new_empty(*query_TQD.shape[:2], cache.value_PSHE.shape[-1])
    counts = np.array(ragged.query_counts)
    few = (counts > 0) & (counts <= cpu.MOST_ROWS)
    ends = counts.cumsum()
    if few.any():
        sequences = np.repeat(np.arange(len(counts)), counts)
        rows = np.flatnonzero(few[sequences])
        behind = ends[sequences[rows]] - 1 - rows  # rows of the same sequence after this one
        context = ragged.context_B.numpy()[sequences[rows]] - behind
        table = ragged.page_table_BM
        cpu.attend(query_TQD, cache, table, rows, sequences[rows], context, out_TQE, **options)
    for sequence in np.flatnonzero(counts > cpu.MOST_ROWS):
        part = slice(ends[sequence] - counts[sequence], ends[sequence])
        alone = Ragged(
            ragged.page_table_BM[sequence : sequence + 1],
            ragged.context_B[sequence : sequence + 1],
            [int(counts[sequence])],
        )
        out_TQE[part] = reference.paged_attention(query_TQD[part], cache, alone, **options)
    return out_TQE
