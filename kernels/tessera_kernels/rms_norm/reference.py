"""`rms_norm` and its variants in plain torch. Shape letters: T rows, K features."""

from __future__ import annotations

import torch

from tessera_kernels.triton_parts.row_quantize_reference import quantized_rows


def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    """Reference of `tessera_kernels.rms_norm.rms_norm`."""
    return _normalized(x_TK, weight_K, epsilon, offset).to(x_TK.dtype)


def rms_norm_quantized(
    x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `tessera_kernels.rms_norm.rms_norm_quantized`."""
    return quantized_rows(_normalized(x_TK, weight_K, epsilon, offset), dtype)


def _normalized(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    x = x_TK.float()
    normalized = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return normalized * (weight_K.float() + offset)
