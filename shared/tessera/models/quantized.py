"""Linear layers in few bits, quantized when a model is loaded; the schemes are those of `tessera_kernels`.

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
"""Inputs that share a scale in int4."""

MIN_WEIGHTS = 16_384
"""Smaller layers stay as they are: packing them would cost more than it saves (routers, gates)."""
FLOAT_COLUMNS = 16
"""Inputs of a layer that are multiplied in float: those with the largest values."""
MAX_FLOAT_SHARE = 0.125
"""Of a layer's inputs."""
_NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})


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
        largest_K: the largest magnitude that each of its inputs has; None where nothing is known.
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
        """Give the weight's memory back; the layer cannot run afterwards."""
        del self.weight


class QuantizedLinear(nn.Module):
    """A linear layer in another scheme than `Int8Linear`'s.

    Args:
        layer: whose weights are quantized; [outputs, inputs] in any float dtype.
        scheme: `fp8` rounds inputs too, by token; the others of four bits round weights alone.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear, scheme: Scheme) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight_NK = layer.weight.detach()
        if scheme == "int4" and weight_NK.device.type == "cpu" and weight_NK.shape[1] % SMALL_GROUP == 0:
            # Groups are GGUF's blocks: what came out of such a file keeps its numbers.
            made: QuantizedWeight | ScaledWeight = quantize_int4_offsets(weight_NK, SMALL_GROUP)
        else:
            made = quantized_weight(weight_NK, scheme)
        self.weight: QuantizedWeight | ScaledWeight | PackedInt4 = made
        if isinstance(made, QuantizedWeight) and packs(made):
            self.weight = pack(made)
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
    """Replace the linear layers of a model, in place; see `quantize_int8`, which this is for `int8`.

    A layer whose sizes a scheme cannot cut into its groups stays as it is, and so does a small one. On a CPU `int4`
    leaves a language model's head 8 bits, as files of four bits do: with four SmolLM2's perplexity is 1.066 times that
    in float32, with eight 1.011 times.
    """
    if scheme == "int8":
        return quantize_int8(model, largest)
    replaced = before = after = 0
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for module, name, path, child in _linear_layers(model):
        if scheme != "fp8" and not _group(child.in_features):
            continue
        made: QuantizedLinear | Int8Linear
        if child is head and scheme == "int4" and child.weight.device.type == "cpu":
            made = Int8Linear(child, largest.get(path))
        else:
            made = QuantizedLinear(child, scheme)
        setattr(module, name, made)
        replaced += 1
        before += child.weight.numel() * child.weight.element_size()
        after += made.weight.nbytes
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
    """128, or 32 where that does not divide the inputs: 64 would be stored as 128 are. 0 when neither does."""
    return next((group for group in (GROUP, SMALL_GROUP) if inputs % group == 0), 0)


def _linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Linear]]:
    """Owner, name there, name in the model, and layer of each that is large enough."""
    return [
        (module, name, f"{path}.{name}" if path else name, child)
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= MIN_WEIGHTS
    ]


def quantize_int8(model: nn.Module, largest: Mapping[str, torch.Tensor] = _NOTHING) -> QuantizationReport:
    """Replace the linear layers of a model, in place. Their float weights are freed.

    Args:
        model: the one.
        largest: of layers by name, the largest magnitude of each input, which says what its outlier columns are. A
            layer that is not there has none.
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
