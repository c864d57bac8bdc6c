"""Decoding with multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) on absorbed queries.

All heads share one latent vector and one rotary key for each position. With the key projection absorbed into the query,
scores are dot products with the latent itself, and the output is a weighted mean of latents for the value projection.

Shape letters: T query tokens of all sequences one after another, B sequences, Q heads, R rank of the latent, O rotary
dim, C = R + O, P pages, S slots per page. Knows nothing of the projections, nor of how latents get
into the cache.
"""

from __future__ import annotations

import torch

from tessera_kernels.latent_attention import registered
from tessera_kernels.paged_attention.ragged import Ragged

__all__ = ["Ragged", "latent_attention"]


def latent_attention(
    query_TQR: torch.Tensor, rope_TQO: torch.Tensor, cache_PSC: torch.Tensor, ragged: Ragged, *, scaling: float
) -> torch.Tensor:
    """softmax(scaling · (q cᵀ + p kᵀ)) c for each query over its sequence's positions up to and including its own.

    For few query rows of each sequence (decode steps and draft tokens): for prefill, expanding the latents to keys and
    values costs less.

    Args:
        query_TQR: the part of queries that is not rotated, multiplied by the key projection.
        rope_TQO: the rotated part of queries, in the same dtype.
        cache_PSC: contiguous, in the dtype of the queries; a slot holds the latent c, then the rotated key k.
        ragged: query rows, context length and pages of each sequence.
        scaling: factor on the scores: 1/√(head dim before absorption).

    Returns:
        [T, Q, R], in the dtype of the queries.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or counts that do not add up to T.
    """
    wanted = (*query_TQR.shape[:2], cache_PSC.shape[-1] - query_TQR.shape[-1])
    if query_TQR.dim() != 3 or cache_PSC.dim() != 3 or rope_TQO.shape != wanted or wanted[2] < 1:
        raise ValueError(
            f"queries {tuple(query_TQR.shape)} and {tuple(rope_TQO.shape)} do not fit a cache "
            f"{tuple(cache_PSC.shape)}: their dims must add up to that of a slot"
        )
    if query_TQR.dtype not in registered.DTYPES or not query_TQR.dtype == rope_TQO.dtype == cache_PSC.dtype:
        raise ValueError(
            "queries and cache must be one of float32, float16 and bfloat16, not "
            f"{query_TQR.dtype}, {rope_TQO.dtype} and {cache_PSC.dtype}"
        )
    if not cache_PSC.is_contiguous():
        raise ValueError("the cache must be contiguous: a slot is a row of it")
    batch = len(ragged.query_counts)
    if sum(ragged.query_counts) != query_TQR.shape[0]:
        raise ValueError(f"query counts add up to {sum(ragged.query_counts)}, but there are {query_TQR.shape[0]} rows")
    if ragged.page_table_BM.shape[0] != batch or ragged.context_B.shape != (batch,):
        raise ValueError(
            f"{batch} query counts need as many lines of the page table and contexts, not "
            f"{tuple(ragged.page_table_BM.shape)} and {tuple(ragged.context_B.shape)}"
        )
    if torch.compiler.is_compiling():
        out: torch.Tensor = torch.ops.tessera.latent_attention(
            query_TQR, rope_TQO, cache_PSC, ragged.page_table_BM, ragged.context_B, ragged.query_counts, scaling
        )
        return out
    return registered.compute(query_TQR, rope_TQO, cache_PSC, ragged, scaling=scaling)
