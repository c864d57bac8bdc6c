"""Bidirectional attention over dense sequences, for diffusion transformers: self attention and cross attention.

Shape letters: B batch, T query tokens, S key tokens, H heads, D head dim, R rows of a quantized block.
Knows nothing of pages, causal masks or rotary embeddings.
"""

from __future__ import annotations

import torch

from tessera_kernels.attention import registered

__all__ = ["attention"]


def attention(
    query_BTHD: torch.Tensor,
    key_BSHD: torch.Tensor,
    value_BSHD: torch.Tensor,
    *,
    scaling: float | None = None,
    lengths_B: torch.Tensor | None = None,
    int8_scores: bool = False,
    float8_values: bool = False,
) -> torch.Tensor:
    """softmax(scaling · q kᵀ) v for each query over all keys of its own sequence.

    Quantization follows SageAttention (Zhang et al. 2024, arXiv 2410.02367; 2024, arXiv 2411.10958): the mean key is
    subtracted from keys, which does not change the softmax; then queries and keys are quantized to int8 with a scale
    for each block, values to float8 (e4m3) with a scale for each channel, and attention weights to float8. The result
    is exact on a CPU and on devices that cannot do this.

    Args:
        query_BTHD: float16, bfloat16 or float32; the features of a head are contiguous.
        key_BSHD: keys in the dtype of the queries.
        value_BSHD: values in the dtype of the queries.
        scaling: factor on the scores; 1/√D if not given.
        lengths_B: int32 or int64, the number of keys of each sequence, at least 1; keys behind it may hold anything.
            None if every sequence has S keys.
        int8_scores: whether scores may be computed in int8, with a relative RMS error of about 1 % on normally
            distributed inputs.
        float8_values: whether values and attention weights may be float8 as well, with an error of about 4 %.

    Returns:
        [B, T, H, D], in the dtype of the queries.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together, or float8 without int8.
    """
    batch, _, heads, dim = query_BTHD.shape if query_BTHD.dim() == 4 else (0, 0, 0, 0)
    wanted = (batch, key_BSHD.shape[1] if key_BSHD.dim() == 4 else 0, heads, dim)
    if query_BTHD.dim() != 4 or not key_BSHD.shape == value_BSHD.shape == wanted:
        raise ValueError(
            f"queries {tuple(query_BTHD.shape)} need keys and values [batch, any, heads, head dim] like them, not "
            f"{tuple(key_BSHD.shape)} and {tuple(value_BSHD.shape)}"
        )
    if query_BTHD.dtype not in registered.DTYPES or not query_BTHD.dtype == key_BSHD.dtype == value_BSHD.dtype:
        raise ValueError(
            "queries, keys and values must be one of float32, float16 and bfloat16, not "
            f"{query_BTHD.dtype}, {key_BSHD.dtype} and {value_BSHD.dtype}"
        )
    if not key_BSHD.shape[1]:
        raise ValueError("there must be at least one key")
    if lengths_B is not None and (lengths_B.shape != (batch,) or lengths_B.dtype not in {torch.int32, torch.int64}):
        raise ValueError(f"lengths must be int32 or int64 ({batch},), not {lengths_B.dtype} {tuple(lengths_B.shape)}")
    if float8_values and not int8_scores:
        raise ValueError("float8 values are for int8 scores: ask for both")
    scaling = dim**-0.5 if scaling is None else scaling
    if torch.compiler.is_compiling():
        out: torch.Tensor = torch.ops.tessera.attention(
            query_BTHD, key_BSHD, value_BSHD, scaling, lengths_B, int8_scores, float8_values
        )
        return out
    return registered.compute(
        query_BTHD,
        key_BSHD,
        value_BSHD,
        scaling=scaling,
        lengths_B=lengths_B,
        int8_scores=int8_scores,
        float8_values=float8_values,
    )
