"""Quantized linear layers: weights are quantized when a model is loaded, in the schemes of `tessera_kernels`.

Does not know models: it replaces layers wherever they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from tessera_kernels.int8_linear import Int8Weight, int8_linear, quantize_weight
from tessera_kernels.quantizers import (
    quantize_int4,
    quantize_int4_offsets,
    quantize_mxfp4,
    quantize_nvfp4,
    quantize_scaled,
)
from tessera_kernels.scaled_linear import scaled_linear
from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight
from tessera_kernels.weight_only_linear import PackedInt4, pack, packed_int4_linear, packs, weight_only_linear

Scheme = Literal["int8", "fp8", "int4", "mxfp4", "nvfp4"]
GROUP, SMALL_GROUP = 128, 32
"""Number of inputs that share a scale in int4; the small group where the large one does not divide a layer's inputs."""

MIN_WEIGHTS = 16_384
"""Fewest weights of a layer that is quantized. Quantizing smaller ones (routers, gates) costs more than it saves."""
FLOAT_COLUMNS = 16
"""Most inputs of an int8 layer that are multiplied in float: those with the largest magnitudes."""
MAX_FLOAT_SHARE = 0.125
"""Largest share of a layer's inputs that are multiplied in float."""
_NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class QuantizationReport:
    """How many layers were replaced, and the bytes of their weights before and after."""

    layers: int
    bytes_before: int
    bytes_after: int


class Int8Linear(nn.Module):
    """A linear layer with int8 weights.

    Args:
        layer: its weight [outputs, inputs], of any float dtype, is quantized.
        largest_K: largest magnitude of each of its inputs, from calibration; None when the model was not calibrated.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear, largest_K: torch.Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        largest_K = None if largest_K is None else largest_K.to(layer.weight.device)
        self.weight: Int8Weight = quantize_weight(layer.weight.detach(), _columns(largest_K), largest_K)
        bias = None if layer.bias is None else layer.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] → [..., outputs], the dtype of `x`."""
        out_TN = int8_linear(x.reshape(-1, self.in_features), self.weight, self.bias)
        return out_TN.view(*x.shape[:-1], self.out_features)

    def free(self) -> None:
        """Free the weight's memory. The layer cannot run afterwards."""
        del self.weight


class QuantizedLinear(nn.Module):
    """A linear layer in a scheme other than int8.

    Args:
        layer: its weight [outputs, inputs], of any float dtype, is quantized.
        scheme: `fp8` quantizes inputs too, with one scale for a token; the four-bit schemes quantize weights alone.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear, scheme: Scheme) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight_NK = layer.weight.detach()
        if scheme == "int4" and weight_NK.device.type == "cpu" and weight_NK.shape[1] % SMALL_GROUP == 0:
            # Groups are GGUF's blocks, so a weight that came from such a file keeps its values.
            weight: QuantizedWeight | ScaledWeight = quantize_int4_offsets(weight_NK, SMALL_GROUP)
        else:
            weight = quantized_weight(weight_NK, scheme)
        self.weight: QuantizedWeight | ScaledWeight | PackedInt4 = weight
        if isinstance(weight, QuantizedWeight) and packs(weight):
            self.weight = pack(weight)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] → [..., outputs], the dtype of `x`."""
        x_TK = x.reshape(-1, self.in_features)
        if isinstance(self.weight, ScaledWeight):
            out_TN = scaled_linear(x_TK, self.weight, self.bias)
        elif isinstance(self.weight, PackedInt4):
            out_TN = packed_int4_linear(x_TK, self.weight, self.bias)
        else:
            out_TN = weight_only_linear(x_TK, self.weight, self.bias)
        return out_TN.view(*x.shape[:-1], self.out_features)


def quantize(model: nn.Module, scheme: Scheme, largest: Mapping[str, torch.Tensor] = _NOTHING) -> QuantizationReport:
    """Replace the linear layers of a model by quantized ones, in place.

    A layer whose inputs cannot be divided into groups stays as it is, and so does a small one. On a CPU, `int4` keeps a
    language model's head in int8, as four-bit files do: SmolLM2's perplexity is 1.066 times that of float32 with a
    four-bit head, and 1.011 times with an int8 head.

    Args:
        model: any model.
        scheme: how weights are stored from now on.
        largest: largest magnitude of each input of a layer, by the layer's name; read for int8 layers.
    """
    if scheme == "int8":
        return quantize_int8(model, largest)
    replaced = before = after = 0
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for module, name, path, child in _linear_layers(model):
        if scheme != "fp8" and not _group(child.in_features):
            continue
        replacement: QuantizedLinear | Int8Linear
        if child is head and scheme == "int4" and child.weight.device.type == "cpu":
            replacement = Int8Linear(child, largest.get(path))
        else:
            replacement = QuantizedLinear(child, scheme)
        setattr(module, name, replacement)
        replaced += 1
        before += child.weight.numel() * child.weight.element_size()
        after += replacement.weight.nbytes
    return QuantizationReport(replaced, before, after)


def quantized_weight(weight_NK: torch.Tensor, scheme: Scheme) -> QuantizedWeight | ScaledWeight:
    """A weight [outputs, inputs] in a scheme other than `int8`."""
    if scheme == "fp8":
        return quantize_scaled(weight_NK, torch.float8_e4m3fn)
    if scheme == "mxfp4":
        return quantize_mxfp4(weight_NK, clip="mse")
    if scheme == "nvfp4":
        return quantize_nvfp4(weight_NK, clip="mse")
    return quantize_int4(weight_NK, _group(weight_NK.shape[1]), symmetric=False, clip="mse")


def _group(inputs: int) -> int:
    """Size of a group: 128, or 32 where 128 does not divide the inputs, or 0 when neither does. (64 would be stored
    like 128.)"""
    return next((group for group in (GROUP, SMALL_GROUP) if inputs % group == 0), 0)


def _linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Linear]]:
    """Owner, name in the owner, name in the model, and layer itself, for each layer that is large enough."""
    return [
        (module, name, f"{path}.{name}" if path else name, child)
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= MIN_WEIGHTS
    ]


def quantize_int8(model: nn.Module, largest: Mapping[str, torch.Tensor] = _NOTHING) -> QuantizationReport:
    """Replace the linear layers of a model by int8 ones, in place. Their float weights are freed.

    Args:
        model: any model.
        largest: largest magnitude of each input of a layer, by the layer's name; it chooses the outlier columns. A
            layer that is missing has no outlier columns.
    """
    chosen = _linear_layers(model)
    before = after = 0
    for module, name, path, child in chosen:
        replaced = Int8Linear(child, largest.get(path))
        setattr(module, name, replaced)
        before += child.weight.numel() * child.weight.element_size()
        after += replaced.weight.nbytes
    return QuantizationReport(len(chosen), before, after)


def _columns(largest_K: torch.Tensor | None) -> torch.Tensor | None:
    if largest_K is None:
        return None
    count = min(FLOAT_COLUMNS, int(MAX_FLOAT_SHARE * len(largest_K)))
    return largest_K.topk(count).indices.sort().values
