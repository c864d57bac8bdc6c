"""`int8_linear` on a GPU in two launches: one quantizes tokens, one multiplies with `scaled_linear`'s kernel.

Outlier columns get a factor of zero before quantizing, and are added in the second launch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tessera_kernels.int8_linear.weight import Int8Weight
from tessera_kernels.scaled_linear.quantize import quantize_tokens
from tessera_kernels.scaled_linear.triton import multiply
from tessera_kernels.storage.scaled_weight import ScaledWeight


def int8_linear(
    x_TK: torch.Tensor,
    weight: Int8Weight,
    bias_N: torch.Tensor | None,
    *,
    out: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.int8_linear.int8_linear`."""
    x_TK = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
    factor_K = weight.smoothing_K.index_fill(0, weight.outlier_columns_M, 0.0)
    quantized_TK, scale_T = quantize_tokens(x_TK, torch.int8, factor_K=factor_K)
    out = x_TK.new_empty(len(x_TK), weight.weight_KN.shape[1]) if out is None else out
    scaled = ScaledWeight(weight.weight_KN.t().contiguous(), weight.scale_N)  # `weight_KN` is a view: nothing is copied
    exact = x_TK, weight.outlier_columns_M, weight.outlier_weight_MN
    bias = None if bias_N is None else bias_N.contiguous()
    multiply(quantized_TK, scale_T, scaled, bias, out, exact=exact, configuration=configuration)
    return out
