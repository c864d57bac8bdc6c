"""`int8_linear` in plain torch."""

from __future__ import annotations

import torch

LEVELS = 127
"""Largest magnitude of an 8-bit integer that is used, so that the scale is symmetric."""
SMALLEST = torch.finfo(torch.float32).tiny


def int8_linear(
    x_TK: torch.Tensor, weight_KN: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """See `tessera_kernels.int8_linear.int8_linear`."""
    x = x_TK.float()
    largest_T1 = x.abs().amax(dim=1, keepdim=True).clamp_min_(SMALLEST)
    quantized_TK = (x * (LEVELS / largest_T1)).round_().to(torch.int8)
    # A single row may have any stride and still count as contiguous; the product reads past it then.
    quantized_TK = quantized_TK.clone(memory_format=torch.contiguous_format)
    out_TN = torch._int_mm(quantized_TK, weight_KN).float().mul_(scale_N).mul_(largest_T1 / LEVELS)
    if bias_N is not None:
        out_TN += bias_N
    return out_TN.to(x_TK.dtype)
