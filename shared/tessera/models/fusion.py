"""Fuses by structure: linear layers of one module that read the same input become one product, norms one operation.

The layers are found by observing a forward pass of one token, so no model is named: q, k and v; gate and up; whatever a
new model calls them. The module's own code stays. It calls its layers one after another: the first computes for all,
and the others take their slice. On any device that is one launch instead of several, and where inputs are quantized,
one quantization.

Does not know what the layers are for, nor how weights are stored later: `tessera.models.quantized` does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from tessera.models.attention import probe
from tessera_kernels.rms_norm import rms_norm


@dataclass(frozen=True)
class FusionReport:
    """What was fused in a model.

    Attributes:
        groups: how often layers of these names were fused, such as {"q_proj+k_proj+v_proj": 30}.
        norms: number of RMSNorms that became one operation.
    """

    groups: dict[str, int]
    norms: int = 0

    def __str__(self) -> str:
        parts = [f"{names} ×{count}" for names, count in self.groups.items()]
        parts += [f"norms ×{self.norms}"] if self.norms else []
        return ", ".join(parts) or "nothing"


class RMSNorm(nn.Module):
    """Replaces a model's own RMSNorm and computes the same in one operation.

    Args:
        weight: [features].
        epsilon: added to the mean square.
        offset: added to the weight; 1 for models that store the weight minus one.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., features] → the same."""
        return rms_norm(x, self.weight, self.epsilon, offset=self.offset)


class FusedLinear(nn.Module):
    """One linear layer in place of several that read the same input.

    Args:
        layers: have the same number of inputs. Their weights are copied into one.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        first = layers[0]
        self.widths = [layer.out_features for layer in layers]
        self.linear = nn.Linear(
            first.in_features, sum(self.widths), bias=first.bias is not None, device="meta", dtype=first.weight.dtype
        )
        self.linear.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
        if first.bias is not None:
            biases = [layer.bias.detach() for layer in layers]
            self.linear.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def take(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The output of layer `index` for `x` [..., inputs]. All layers are computed when `x` is a new tensor."""
        if self._input is not x or self._parts[index] is None:
            self._parts = list(self.linear(x).split(self.widths, dim=-1))
            self._input = x
        part = self._parts[index]
        assert part is not None
        self._parts[index] = None
        if all(other is None for other in self._parts):
            self._input = None  # so that its memory can be reused
        return part


class FusedSlice(nn.Module):
    """Replaces one of the fused layers and returns its slice of the product.

    Args:
        projections: the fused layer.
        index: of the replaced layer among the fused ones.
        layer: the replaced layer.
    """

    def __init__(self, projections: FusedLinear, index: int, layer: nn.Linear) -> None:
        super().__init__()
        # Only the first slice registers the fused layer as a child, so that its weights are counted once.
        self._projections = [projections]
        self.index = index
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        if index == 0:
            self.projections = projections

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return self._projections[0].take(self.index, x)


def fuse(model: PreTrainedModel) -> FusionReport:
    """Fuse the linear layers and norms of a model, in place.

    Args:
        model: a decoder on its device, loaded on our attention.
    """
    owners: dict[nn.Module, tuple[nn.Module, str]] = {}
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                owners[child] = module, name
    calls: defaultdict[tuple[int, int], list[nn.Linear]] = defaultdict(list)
    seen: Counter[nn.Module] = Counter()
    inputs_seen: list[torch.Tensor] = []  # inputs stay alive, so that no two have the same id

    def watch(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        inputs_seen.append(inputs[0])
        seen[layer] += 1
        calls[id(owners[layer][0]), id(inputs[0])].append(layer)

    handles = [layer.register_forward_pre_hook(watch) for layer in owners]
    try:
        probe(model)
    finally:
        for handle in handles:
            handle.remove()
    groups: Counter[str] = Counter()
    for layers in calls.values():
        if len(layers) < 2 or not _alike(layers) or any(seen[layer] != 1 for layer in layers):
            continue
        groups[fuse_layers(owners[layers[0]][0], [owners[layer][1] for layer in layers])] += 1
    return FusionReport(dict(groups), replace_norms(model))


def fuse_layers(owner: nn.Module, names: Sequence[str]) -> str:
    """Fuse several layers of a module that read the same input, in place.

    Args:
        owner: the module. It calls the layers one after another with the same tensor.
        names: attributes of the layers.

    Returns:
        The names joined by `+`; empty when the layers cannot be fused (missing, replaced, or of other sizes).
    """
    layers = [layer for name in names if type(layer := getattr(owner, name, None)) is nn.Linear]
    if len(layers) < max(2, len(names)) or not _alike(layers):
        return ""
    projections = FusedLinear(layers)
    for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
        setattr(owner, name, FusedSlice(projections, index, layer))
    return "+".join(names)


def replace_norms(model: nn.Module) -> int:
    """Replace every module that computes what `RMSNorm` does, which a sample shows. Returns how many were replaced."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if (norm := _as_norm(child)) is not None:
                setattr(module, name, norm)
                replaced += 1
    return replaced


@torch.inference_mode()
def _as_norm(module: nn.Module) -> RMSNorm | None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, nn.Parameter):
        return None
    if weight.ndim != 1 or not isinstance(epsilon, float) or list(module.parameters()) != [weight]:
        return None
    sample = torch.linspace(-3, 5, 3 * len(weight), device=weight.device).to(weight.dtype).view(3, -1)
    expected = module(sample)
    for offset in (0.0, 1.0):
        norm = RMSNorm(weight, epsilon, offset)
        result = norm(sample)
        if result.dtype == expected.dtype and torch.allclose(result.float(), expected.float(), rtol=1e-2, atol=1e-3):
            return norm
    return None


def _alike(layers: list[nn.Linear]) -> bool:
    first = layers[0]
    return all(
        layer.in_features == first.in_features
        and layer.weight.dtype == first.weight.dtype
        and (layer.bias is None) == (first.bias is None)
        for layer in layers
    )
