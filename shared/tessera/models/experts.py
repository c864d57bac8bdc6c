"""Runs the experts of a mixture through `tessera_kernels.moe`, with weights as they are stored or quantized.

Layers of experts are recognized by structure, whatever the model is called: three-dimensional weights `gate_up_proj`
and `down_proj` with SwiGLU between them. The replacement is tried on random rows. Two layouts are known: outputs before
inputs with all gates first; and gpt-oss', with inputs before outputs, gates and ups interleaved, biases, and clamped
activations. Others stay with Transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tessera.models.quantized import QuantizationReport, Scheme, quantized_weight
from tessera_kernels.grouped_gemm import ExpertsWeight
from tessera_kernels.grouped_gemm.reference import ALPHA, LIMIT
from tessera_kernels.moe import moe
from tessera_kernels.quantizers import quantize_scaled
from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight

TRIAL_ROWS = 5
"""Number of random rows on which a replacement is compared with the original."""


@dataclass(frozen=True)
class ExpertParts:
    """The weights of a layer of experts in `moe`'s layout, with E experts, F inner features and D features.

    Attributes:
        gate_up_EJD: [E, 2F, D], gates first.
        down_EDF: [E, D, F].
        gate_up_bias_EJ: [E, 2F], gates first, or None.
        down_bias_ED: [E, D], or None.
        clamped: whether gates and ups are clamped as in gpt-oss.
    """

    gate_up_EJD: torch.Tensor
    down_EDF: torch.Tensor
    gate_up_bias_EJ: torch.Tensor | None = None
    down_bias_ED: torch.Tensor | None = None
    clamped: bool = False


class Experts(nn.Module):
    """Replaces a model's own experts.

    Args:
        parts: the layer's weights.
        scheme: how its weights are stored; `stored` leaves them as they are.
    """

    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None

    def __init__(self, parts: ExpertParts, scheme: Literal["stored"] | Scheme) -> None:
        super().__init__()
        self.gate_up, self.down = _weight(parts.gate_up_EJD, scheme), _weight(parts.down_EDF, scheme)
        self.register_buffer("gate_up_bias", parts.gate_up_bias_EJ, persistent=False)
        self.register_buffer("down_bias", parts.down_bias_ED, persistent=False)
        self.clamped = parts.clamped

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Run the chosen experts.

        Args:
            hidden_states: [tokens, features].
            top_k_index: experts of each token, [tokens, k].
            top_k_weights: their weights, [tokens, k].

        Returns:
            [tokens, features].
        """
        return moe(
            hidden_states.reshape(-1, hidden_states.shape[-1]),
            self.gate_up,
            self.down,
            top_k_index.to(torch.int32).contiguous(),
            top_k_weights.float().contiguous(),
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            clamped=self.clamped,
        ).view_as(hidden_states)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.gate_up.nbytes + self.down.nbytes


def replace_experts(model: nn.Module, scheme: Literal["stored"] | Scheme) -> QuantizationReport:
    """Replace every layer of experts that computes what `moe` does, in place.

    Args:
        model: on its device.
        scheme: how their weights are stored; `stored` leaves them as they are.
    """
    replaced = before = after = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            parts = _parts(child)
            if parts is None or not _alike(child, parts):
                continue
            experts = Experts(parts, scheme)
            setattr(module, name, experts)
            replaced += 1
            before += parts.gate_up_EJD.nbytes + parts.down_EDF.nbytes
            after += experts.nbytes
    return QuantizationReport(replaced, before, after)


def _weight(weight_ENK: torch.Tensor, scheme: Literal["stored"] | Scheme) -> ExpertsWeight:
    if scheme == "stored":
        return QuantizedWeight("dense", weight_ENK.shape[2], weight_ENK.shape[2], weight_ENK.contiguous())
    quantized = [
        quantize_scaled(one, torch.int8) if scheme == "int8" else quantized_weight(one, scheme) for one in weight_ENK
    ]
    if isinstance(quantized[0], ScaledWeight):
        scaled = [one for one in quantized if isinstance(one, ScaledWeight)]
        return ScaledWeight(
            torch.stack([one.elements_NK for one in scaled]), torch.stack([one.scale for one in scaled])
        )
    few = [one for one in quantized if isinstance(one, QuantizedWeight)]

    def stacked(name: str) -> torch.Tensor | None:
        parts = [getattr(one, name) for one in few]
        return None if parts[0] is None else torch.stack(parts)

    numbers = stacked("elements")
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


def _parts(module: nn.Module) -> ExpertParts | None:
    """The weights of a layer of experts, recognized by their shapes; None when the layout is not known."""
    gate_up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(gate_up, nn.Parameter) or not isinstance(down, nn.Parameter):
        return None
    if gate_up.ndim != 3 or down.ndim != 3 or getattr(module, "has_post_expert_norm", False):
        return None
    experts, rows, columns = gate_up.shape
    gate_up_bias = getattr(module, "gate_up_proj_bias", None)
    down_bias = getattr(module, "down_proj_bias", None)
    if gate_up_bias is None and down_bias is None:
        fits = down.shape == (experts, columns, rows // 2) and not getattr(module, "has_bias", False)
        return ExpertParts(gate_up.detach(), down.detach()) if fits else None
    if not isinstance(gate_up_bias, nn.Parameter) or not isinstance(down_bias, nn.Parameter):
        return None
    if down.shape != (experts, columns // 2, rows) or gate_up_bias.shape != (experts, columns):
        return None
    if (getattr(module, "alpha", None), getattr(module, "limit", None)) != (ALPHA, LIMIT):
        return None
    return ExpertParts(
        _gates_first(gate_up.detach().transpose(1, 2)),
        down.detach().transpose(1, 2).contiguous(),
        _gates_first(gate_up_bias.detach()),
        down_bias.detach(),
        clamped=True,
    )


def _gates_first(turns: torch.Tensor) -> torch.Tensor:
    """[E, 2F, …] with gates and ups interleaved → all gates, then all ups."""
    return torch.cat([turns[:, ::2], turns[:, 1::2]], dim=1).contiguous()


@torch.inference_mode()
def _alike(module: nn.Module, parts: ExpertParts) -> bool:
    """Whether `moe` gives the same result as a layer of experts on some random rows."""
    experts, _, features = parts.gate_up_EJD.shape
    random = torch.Generator().manual_seed(0)
    x_TD = torch.randn(TRIAL_ROWS, features, generator=random).to(parts.down_EDF)
    chosen = torch.stack([torch.randperm(experts, generator=random)[:2] for _ in range(TRIAL_ROWS)]).to(x_TD.device)
    shares = torch.rand(TRIAL_ROWS, chosen.shape[1], generator=random).to(x_TD)
    expected = module(x_TD, chosen, shares).float()
    replacement = Experts(parts, "stored")
    return bool((replacement(x_TD, chosen, shares).float() - expected).norm() <= 0.02 * expected.norm())
