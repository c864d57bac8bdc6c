"""Experts of a mixture through `tessera_kernels.moe`: weights as they are, or in few bits.

By structure, as everywhere: three-dimensional weights `gate_up_proj` and `down_proj` with SwiGLU between them, whatever
the model is called; and tried out on random rows. Others (interleaved or capped gates) stay with Transformers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from tessera.models.quantized import QuantizationReport, Scheme, quantized_weight
from tessera_kernels.grouped_gemm import ExpertsWeight
from tessera_kernels.moe import moe
from tessera_kernels.quantized_weight import QuantizedWeight
from tessera_kernels.quantizers import quantize_scaled
from tessera_kernels.scaled_weight import ScaledWeight

TRIED_ROWS = 5


class Experts(nn.Module):
    """Stands where a model's own experts were.

    Args:
        gate_up: [experts, 2 · inner, features], gates first.
        down: [experts, features, inner].
    """

    def __init__(self, gate_up: ExpertsWeight, down: ExpertsWeight) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[tokens, features], chosen experts [tokens, k] and their weights → [tokens, features]."""
        return moe(
            hidden_states.reshape(-1, hidden_states.shape[-1]),
            self.gate_up,
            self.down,
            top_k_index.to(torch.int32).contiguous(),
            top_k_weights.float().contiguous(),
        ).view_as(hidden_states)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.gate_up.nbytes + self.down.nbytes


def replace_experts(model: nn.Module, scheme: Literal["stored"] | Scheme) -> QuantizationReport:
    """Replace every layer of experts that computes what `moe` does, in place.

    Args:
        model: on its device.
        scheme: of their weights from now on.
    """
    replaced = before = after = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            gate_up, down = getattr(child, "gate_up_proj", None), getattr(child, "down_proj", None)
            if not isinstance(gate_up, nn.Parameter) or not isinstance(down, nn.Parameter) or not _alike(child):
                continue
            made = Experts(_weight(gate_up.detach(), scheme), _weight(down.detach(), scheme))
            setattr(module, name, made)
            replaced += 1
            before += gate_up.nbytes + down.nbytes
            after += made.nbytes
    return QuantizationReport(replaced, before, after)


def _weight(weight_ENK: torch.Tensor, scheme: Literal["stored"] | Scheme) -> ExpertsWeight:
    if scheme == "stored":
        return QuantizedWeight("dense", weight_ENK.shape[2], weight_ENK.shape[2], weight_ENK.contiguous())
    made = [
        quantize_scaled(one, torch.int8) if scheme == "int8" else quantized_weight(one, scheme) for one in weight_ENK
    ]
    if isinstance(made[0], ScaledWeight):
        scaled = [one for one in made if isinstance(one, ScaledWeight)]
        return ScaledWeight(torch.stack([one.numbers_NK for one in scaled]), torch.stack([one.scale for one in scaled]))
    few = [one for one in made if isinstance(one, QuantizedWeight)]

    def stacked(name: str) -> torch.Tensor | None:
        parts = [getattr(one, name) for one in few]
        return None if parts[0] is None else torch.stack(parts)

    numbers = stacked("numbers")
    assert numbers is not None
    tensor_scale = stacked("tensor_scale")
    return QuantizedWeight(
        few[0].format,
        few[0].inputs,
        few[0].group,
        numbers,
        stacked("scale_GN"),
        stacked("zero_GN"),
        None if tensor_scale is None else tensor_scale.flatten(),
    )


@torch.inference_mode()
def _alike(module: nn.Module) -> bool:
    """Whether a layer of experts is plain SwiGLU: what it gives for some rows is what `moe` gives."""
    gate_up, down = module.gate_up_proj, module.down_proj
    assert isinstance(gate_up, nn.Parameter)
    assert isinstance(down, nn.Parameter)
    if gate_up.ndim != 3 or down.shape != (gate_up.shape[0], gate_up.shape[2], gate_up.shape[1] // 2):
        return False
    if getattr(module, "has_bias", False) or getattr(module, "has_post_expert_norm", False):
        return False
    experts, _, features = gate_up.shape
    random = torch.Generator().manual_seed(0)
    x_TD = torch.randn(TRIED_ROWS, features, generator=random).to(gate_up)
    chosen = torch.stack([torch.randperm(experts, generator=random)[:2] for _ in range(TRIED_ROWS)]).to(gate_up.device)
    shares = torch.rand(TRIED_ROWS, chosen.shape[1], generator=random).to(gate_up)
    expected = module(x_TD, chosen, shares).float()
    made = Experts(_weight(gate_up.detach(), "stored"), _weight(down.detach(), "stored"))
    return bool((made(x_TD, chosen, shares).float() - expected).norm() <= 0.02 * expected.norm())
