"""Root-mean-square layer normalization (Zhang & Sennrich 2019)."""

from __future__ import annotations

import torch

from tessera_kernels.rms_norm import cpu, reference

__all__ = ["rms_norm"]


def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, *, offset: float = 0.0) -> torch.Tensor:
    """x / sqrt(mean(x²) + epsilon) · (weight + offset), in float32 inside.

    Args:
        x_TK: [..., features], any float dtype.
        weight_K: [features].
        epsilon: keeps the root away from zero.
        offset: added to the weight (Gemma stores it less one).

    Returns:
        As `x`.

    Raises:
        ValueError: the weight does not fit.
    """
    if weight_K.shape != x_TK.shape[-1:]:
        raise ValueError(f"a weight of shape {tuple(weight_K.shape)} does not fit rows of {x_TK.shape[-1]}")
    if cpu.suited(x_TK, weight_K):
        return cpu.rms_norm(x_TK, weight_K, epsilon, offset)
    return reference.rms_norm(x_TK, weight_K, epsilon, offset)
