"""Linear layers in 8 bits on a CPU; see `tessera_kernels.int8_linear` for the scheme.

Does not know models: it replaces layers wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from tessera_kernels.int8_linear import int8_linear, quantize_weight

MIN_WEIGHTS = 16_384
"""Smaller layers stay as they are: packing them would cost more than it saves (routers, gates)."""


@dataclass(frozen=True)
class QuantizationReport:
    """How many layers were replaced, and bytes of their weights before and after."""

    layers: int
    bytes_before: int
    bytes_after: int


class Int8Linear(nn.Module):
    """A linear layer with int8 weights.

    Args:
        layer: whose weights are quantized; [outputs, inputs] in any float dtype.
    """

    weight_KN: torch.Tensor
    scale_N: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight_KN, scale_N = quantize_weight(layer.weight.detach())
        self.register_buffer("weight_KN", weight_KN, persistent=False)
        self.register_buffer("scale_N", scale_N, persistent=False)
        bias = None if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] → [..., outputs], the dtype of `x`."""
        out_TN = int8_linear(x.reshape(-1, self.in_features), self.weight_KN, self.scale_N, self.bias)
        return out_TN.view(*x.shape[:-1], self.out_features)


def quantize_int8(model: nn.Module) -> QuantizationReport:
    """Replace the linear layers of a model on a CPU, in place. Their float weights are freed."""
    layers = before = after = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or child.weight.numel() < MIN_WEIGHTS:
                continue
            replaced = Int8Linear(child)
            setattr(module, name, replaced)
            layers += 1
            before += child.weight.numel() * child.weight.element_size()
            after += replaced.weight_KN.numel() + 4 * replaced.scale_N.numel()
    return QuantizationReport(layers, before, after)
