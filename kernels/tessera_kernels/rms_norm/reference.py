"""`rms_norm` in plain torch."""

from __future__ import annotations

import torch


def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    """See `tessera_kernels.rms_norm.rms_norm`."""
    x = x_TK.float()
    normalized = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return (normalized * (weight_K.float() + offset)).to(x_TK.dtype)
