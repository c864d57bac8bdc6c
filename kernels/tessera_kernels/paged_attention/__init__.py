"""Causal attention of a ragged batch over a paged KV cache: prefill chunks and decodes in one call.

Shape letters: T query tokens of all sequences one after another, B sequences, Q query heads, H key-value heads (Q is a
multiple of H), D head dim, E value dim, P pages, S slots per page, M page-table width.
Knows no requests, and not that sequences may share pages.
"""

from __future__ import annotations

from typing import TypedDict

import torch

from tessera_kernels.paged_attention import cpu, reference, registered
from tessera_kernels.paged_attention.ragged import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

__all__ = ["Ragged", "paged_attention"]


class _Options(TypedDict):
    scaling: float
    sliding_window: int | None
    softcap: float | None
    sinks_Q: torch.Tensor | None
    tree_BNN: torch.Tensor | None


def paged_attention(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks_Q: torch.Tensor | None = None,
    tree_BNN: torch.Tensor | None = None,
    checked: bool = False,
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
        tree_BNN: bool, N at least the largest query count; instead of causal order, row i of sequence b sees this
            step's row j if [b, i, j] (speculation on a tree; a row sees itself and those it continues). All earlier
            positions are seen.
        checked: whether contexts and page indices are read and checked; on a GPU that waits for it.

    Returns:
        [tokens, query heads, value dim], the queries' dtype.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together, counts that do not add up to T, a tree with a
            sliding window, or where `checked`, a context or a page that is out of range.
    """
    heads, kv_heads = query_TQD.shape[1], cache.key_PSHD.shape[2]
    if heads % kv_heads or query_TQD.shape[2] != cache.key_PSHD.shape[3]:
        raise ValueError(
            f"queries {tuple(query_TQD.shape)} do not fit a key cache {tuple(cache.key_PSHD.shape)}: query heads must "
            "be a multiple of kv heads and head dims equal"
        )
    if sum(ragged.query_counts) != query_TQD.shape[0]:
        raise ValueError(f"query counts add up to {sum(ragged.query_counts)}, but there are {query_TQD.shape[0]} rows")
    _check_options(query_TQD, cache, ragged, sliding_window, sinks_Q, tree_BNN)
    if checked:
        _check_pages(cache, ragged)
    options: _Options = {
        "scaling": scaling,
        "sliding_window": sliding_window,
        "softcap": softcap,
        "sinks_Q": sinks_Q,
        "tree_BNN": tree_BNN,
    }
    if torch.compiler.is_compiling():
        return registered.call_registered(query_TQD, cache, ragged, **options)
    if query_TQD.device.type != "cpu":
        return registered.compute(query_TQD, cache, ragged, **options)
    if tree_BNN is not None or not cpu.suited(query_TQD, cache):
        return reference.paged_attention(query_TQD, cache, ragged, **options)
    return cpu.paged_attention(
        query_TQD,
        cache,
        ragged,
        scaling=scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks_Q=sinks_Q,
    )


def _check_options(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    sliding_window: int | None,
    sinks_Q: torch.Tensor | None,
    tree_BNN: torch.Tensor | None,
) -> None:
    batch, heads = len(ragged.query_counts), query_TQD.shape[1]
    device = query_TQD.device
    if not device == cache.key_PSHD.device == ragged.page_table_BM.device == ragged.context_B.device:
        raise ValueError(
            f"queries, cache, page table and contexts must be on one device, not {device}, {cache.key_PSHD.device}, "
            f"{ragged.page_table_BM.device} and {ragged.context_B.device}"
        )
    if ragged.page_table_BM.shape[0] != batch or ragged.context_B.shape != (batch,):
        raise ValueError(
            f"{batch} query counts need as many lines of the page table and contexts, not "
            f"{tuple(ragged.page_table_BM.shape)} and {tuple(ragged.context_B.shape)}"
        )
    if ragged.page_table_BM.dtype != torch.int32 or ragged.context_B.dtype != torch.int64:
        raise ValueError(
            "the page table must be int32 and contexts int64, not "
            f"{ragged.page_table_BM.dtype} and {ragged.context_B.dtype}"
        )
    if cache.key_PSHD.shape[:3] != cache.value_PSHE.shape[:3] or cache.key_PSHD.dtype != cache.value_PSHE.dtype:
        raise ValueError(
            f"keys {tuple(cache.key_PSHD.shape)} {cache.key_PSHD.dtype} and values {tuple(cache.value_PSHE.shape)} "
            f"{cache.value_PSHE.dtype} must have the same pages, slots, heads and dtype"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"a sliding window has at least one position, not {sliding_window}")
    if sinks_Q is not None and sinks_Q.shape != (heads,):
        raise ValueError(f"sinks must be of shape ({heads},), not {tuple(sinks_Q.shape)}")
    if tree_BNN is not None:
        most = max(ragged.query_counts, default=0)
        square = tree_BNN.dim() == 3 and tree_BNN.shape[1] == tree_BNN.shape[2]
        if tree_BNN.dtype != torch.bool or not square or tree_BNN.shape[0] != batch or tree_BNN.shape[1] < most:
            raise ValueError(
                f"a tree must be bool [{batch}, N, N] with N at least {most}, not {tree_BNN.dtype} "
                f"{tuple(tree_BNN.shape)}"
            )
        if sliding_window is not None:
            raise ValueError("a tree and a sliding window together are not defined: a row's depth is no position")


def _check_pages(cache: PagedKV, ragged: Ragged) -> None:
    pages, size = cache.key_PSHD.shape[:2]
    table = ragged.page_table_BM.cpu()
    for sequence, (context, count) in enumerate(zip(ragged.context_B.tolist(), ragged.query_counts, strict=True)):
        if not count:
            continue
        if not count <= context <= table.shape[1] * size:
            raise ValueError(
                f"sequence {sequence} has a context of {context}: expected at least its {count} query rows and at most "
                f"{table.shape[1]} pages of {size}"
            )
        used = table[sequence, : -(-context // size)]
        bad = used[(used < 0) | (used >= pages)]
        if bad.numel():
            raise ValueError(f"sequence {sequence} has a page {int(bad[0])}; pages are 0 … {pages - 1}")
