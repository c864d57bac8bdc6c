"""`grouped_gemm` in plain torch: a loop over experts."""

from __future__ import annotations

from dataclasses import replace

import torch

from tessera_kernels.grouped_gemm.experts_weight import ExpertsWeight
from tessera_kernels.moe_routing.routing import RoutingPlan
from tessera_kernels.scaled_linear import reference as scaled
from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight
from tessera_kernels.weight_only_linear import reference as weight_only

ALPHA, LIMIT = 1.702, 7.0
"""Factor in the sigmoid, and bound on gates and ups, of the clamped SwiGLU of gpt-oss."""


def expert_of(weight: ExpertsWeight, expert: int) -> ExpertsWeight:
    """The weight of one expert, without the dimension for experts."""
    if isinstance(weight, ScaledWeight):
        return ScaledWeight(weight.elements_NK[expert], weight.scale[expert], weight.input_scale)
    scale, zero, whole = weight.scale_GN, weight.zero_GN, weight.tensor_scale
    return replace(
        weight,
        elements=weight.elements[expert],
        scale_GN=None if scale is None else scale[expert],
        zero_GN=None if zero is None else zero[expert],
        tensor_scale=None if whole is None else whole[expert : expert + 1],
    )


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, clamped: bool) -> torch.Tensor:
    """silu(gate) · up; if `clamped`, the form of gpt-oss (OpenAI 2025, model card): both clamped, and 1 added to up."""
    if not clamped:
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def grouped_gemm(
    x_RK: torch.Tensor,
    weight: ExpertsWeight,
    plan: RoutingPlan,
    assignments: int,
    bias_EN: torch.Tensor | None,
    gated: bool,
    clamped: bool = False,
) -> torch.Tensor:
    """Reference of `tessera_kernels.grouped_gemm.grouped_gemm`; rows of assignments without a place are 0."""
    outputs = (weight.elements_NK if isinstance(weight, ScaledWeight) else weight.elements).shape[-2]
    out = x_RK.new_zeros(assignments, outputs // (2 if gated else 1))
    owners = plan.experts_B.repeat_interleave(plan.tile)
    for expert in sorted(set(plan.experts_B.tolist())):
        rows = plan.rows_P[(owners == expert) & (plan.rows_P < assignments)].long()
        if expert < 0 or not len(rows):
            continue
        x = x_RK[rows // (assignments // len(x_RK))].float()
        bias, one = None if bias_EN is None else bias_EN[expert], expert_of(weight, expert)
        if isinstance(one, QuantizedWeight):
            made = weight_only.weight_only_linear(x, one, bias)
        else:
            made = scaled.scaled_linear(x, one, bias)
        if gated:
            gate, up = made.chunk(2, dim=-1)
            made = swiglu(gate, up, clamped=clamped)
        out[rows] = made.to(out.dtype)
    return out
