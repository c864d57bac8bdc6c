"""Linear layers in 8 bits on a CPU: weights by output channel, inputs by token, products in exact integers.

The scheme is W8A8 with symmetric scales: weights by row as in LLM.int8() (Dettmers et al. 2022, without its outlier
path), inputs by token as in ZeroQuant (Yao et al. 2022). A token's scale depends on that token alone and integer sums
have no rounding, so a row's result does not depend on what shares its batch.

Does not know models: it replaces layers wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

LEVELS = 127
"""Largest magnitude of an 8-bit integer that is used, so that the scale is symmetric."""
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
        weight_NK = layer.weight.detach().float()
        scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
        quantized_NK = (weight_NK / scale_N[:, None]).round_().to(torch.int8)
        # A transposed view: the product reads a row of weights per output.
        self.register_buffer("weight_KN", quantized_NK.t(), persistent=False)
        self.register_buffer("scale_N", scale_N, persistent=False)
        bias = None if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] → [..., outputs], the dtype of `x`."""
        rows_TK = x.reshape(-1, self.in_features)
        largest_T1 = rows_TK.abs().amax(dim=1, keepdim=True).float().clamp_min_(torch.finfo(torch.float32).tiny)
        quantized_TK = (rows_TK * (LEVELS / largest_T1)).round_().to(torch.int8)
        sums_TN = torch._int_mm(quantized_TK, self.weight_KN)
        out_TN = sums_TN.float().mul_(self.scale_N).mul_(largest_T1 / LEVELS)
        if self.bias is not None:
            out_TN += self.bias
        return out_TN.to(x.dtype).view(*x.shape[:-1], self.out_features)


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
