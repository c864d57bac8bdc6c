"""`layer_norm` and its variants in plain torch. B samples, T tokens, C channels; S is 1 or T."""

from __future__ import annotations

import torch


def layer_norm(
    x_TC: torch.Tensor, weight_C: torch.Tensor | None, bias_C: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """Reference of `tessera_kernels.layer_norm.layer_norm`."""
    return _normalized(x_TC, weight_C, bias_C, epsilon, centered=True).to(x_TC.dtype)


def adaptive_norm(
    x_BTC: torch.Tensor,
    added_BTC: torch.Tensor | None,
    gate_BSC: torch.Tensor | None,
    scale_BSC: torch.Tensor,
    shift_BSC: torch.Tensor,
    weight_C: torch.Tensor | None,
    bias_C: torch.Tensor | None,
    epsilon: float,
    centered: bool,
) -> torch.Tensor:
    """Reference of `tessera_kernels.layer_norm.adaptive_norm`."""
    if added_BTC is not None:
        gated_residual(x_BTC, added_BTC, gate_BSC)
    normalized_BTC = _normalized(x_BTC, weight_C, bias_C, epsilon, centered=centered)
    return (normalized_BTC * (1.0 + scale_BSC.float()) + shift_BSC.float()).to(x_BTC.dtype)


def gated_residual(x_BTC: torch.Tensor, added_BTC: torch.Tensor, gate_BSC: torch.Tensor | None) -> None:
    """Reference of `tessera_kernels.layer_norm.gated_residual`."""
    gated_BTC = added_BTC.float() if gate_BSC is None else added_BTC.float() * gate_BSC.float()
    x_BTC.copy_(x_BTC.float() + gated_BTC)


def _normalized(
    x_TC: torch.Tensor,
    weight_C: torch.Tensor | None,
    bias_C: torch.Tensor | None,
    epsilon: float,
    *,
    centered: bool,
) -> torch.Tensor:
    x = x_TC.float()
    if centered:
        x = x - x.mean(-1, keepdim=True)
    normalized = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    if weight_C is not None:
        normalized = normalized * weight_C.float()
    return normalized if bias_C is None else normalized + bias_C.float()
