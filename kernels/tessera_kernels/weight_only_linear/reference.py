"""`weight_only_linear` in plain torch: the dequantized weight, and one product in float32."""

from __future__ import annotations

import torch

from tessera_kernels.storage.quantized_weight import QuantizedWeight, dequantize


def weight_only_linear(x_TK: torch.Tensor, weight: QuantizedWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
    """Reference of `tessera_kernels.weight_only_linear.weight_only_linear`."""
    bias = None if bias_N is None else bias_N.float()
    return torch.nn.functional.linear(x_TK.float(), dequantize(weight), bias).to(x_TK.dtype)
