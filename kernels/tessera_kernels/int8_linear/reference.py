"""`int8_linear` in plain torch."""

from __future__ import annotations

import torch

from tessera_kernels.int8_linear.weight import LEVELS, Int8Weight

SMALLEST = torch.finfo(torch.float32).tiny
"""Lower bound of the magnitude that a token's scale is made of, so that tokens of zeros do not divide by zero."""


def int8_linear(x_TK: torch.Tensor, weight: Int8Weight, bias_N: torch.Tensor | None) -> torch.Tensor:
    """Reference of `tessera_kernels.int8_linear.int8_linear`."""
    x = x_TK.float()
    outliers_TM = x[:, weight.outlier_columns_M]
    rest = x.index_fill(1, weight.outlier_columns_M, 0.0) * weight.smoothing_K
    largest_T1 = rest.abs().amax(dim=1, keepdim=True).clamp_min_(SMALLEST)
    # torch's `LEVELS / largest_T1` would round twice, as a reciprocal and a product.
    factor_T1 = torch.full_like(largest_T1, LEVELS) / largest_T1
    quantized_TK = (rest * factor_T1).round_().to(torch.int8)
    # A single row may have any stride and still count as contiguous; the product reads past it then.
    quantized_TK = quantized_TK.clone(memory_format=torch.contiguous_format)
    out_TN = torch._int_mm(quantized_TK, weight.weight_KN).float().mul_(weight.scale_N).mul_(largest_T1 / LEVELS)
    for column in range(outliers_TM.shape[1]):
        out_TN += outliers_TM[:, column, None] * weight.outlier_weight_MN[column]
    if bias_N is not None:
        out_TN += bias_N
    return out_TN.to(x_TK.dtype)
