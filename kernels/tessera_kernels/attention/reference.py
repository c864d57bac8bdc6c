"""`attention` in plain torch: softmax(scaling · q kᵀ) v in float32, without quantization."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def attention(
    query_BTHD: torch.Tensor,
    key_BSHD: torch.Tensor,
    value_BSHD: torch.Tensor,
    *,
    scaling: float,
    lengths_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reference of `tessera_kernels.attention.attention`."""
    query, key, value = (x.transpose(1, 2).float() for x in (query_BTHD, key_BSHD, value_BSHD))
    mask = None
    if lengths_B is not None:
        mask = (torch.arange(key.shape[2], device=key.device) < lengths_B[:, None])[:, None, None]
        # Keys and values behind a length may be anything, and 0 · NaN is NaN.
        value = value.masked_fill(~mask.transpose(2, 3), 0)
        key = key.masked_fill(~mask.transpose(2, 3), 0)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).to(query_BTHD.dtype)
