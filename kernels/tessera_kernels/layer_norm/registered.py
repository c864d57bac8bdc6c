"""Registers `layer_norm` and its variants for torch.compile and CUDA graphs, and chooses the implementation that runs.

Outputs are contiguous on every device. Checks no arguments: the public functions do. Shape letters: B samples,
T tokens, C channels, S is 1 or T.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.layer_norm import reference

WIDEST = 16384
"""Most channels of a row that the Triton kernel holds in registers beside its modulation."""


def kernel_support(x_TC: torch.Tensor, *others: torch.Tensor | None) -> Support:
    """Whether the Triton kernel supports these tensors."""
    if not x_TC.numel():
        return unsupported("there is nothing to compute")
    if x_TC.shape[-1] > WIDEST:
        return unsupported(f"rows of {x_TC.shape[-1]} channels do not fit into registers ({WIDEST} do)")
    return triton_support(x_TC, *others)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as [T, C] with contiguous channels."""
    return _dense(tensor.reshape(-1, tensor.shape[-1]))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with contiguous channels; a copy only if they are not."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def compute(
    x_TC: torch.Tensor, weight_C: torch.Tensor | None, bias_C: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """`layer_norm` by the fastest implementation for these tensors."""
    if not kernel_support(x_TC, weight_C, bias_C).ok:
        return reference.layer_norm(x_TC, weight_C, bias_C, epsilon).contiguous()
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415 - only where there is a GPU

    out = torch.empty(x_TC.shape, dtype=x_TC.dtype, device=x_TC.device)
    triton.norm(
        _rows(x_TC),
        out_TC=out.view(-1, x_TC.shape[-1]),
        epsilon=epsilon,
        tokens=1,
        weight_C=None if weight_C is None else weight_C.contiguous(),
        bias_C=None if bias_C is None else bias_C.contiguous(),
    )
    return out


def compute_adaptive(
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
    """`adaptive_norm` by the fastest implementation for these tensors."""
    if not kernel_support(x_BTC, added_BTC, gate_BSC, scale_BSC, shift_BSC, weight_C, bias_C).ok:
        return reference.adaptive_norm(
            x_BTC, added_BTC, gate_BSC, scale_BSC, shift_BSC, weight_C, bias_C, epsilon, centered
        ).contiguous()
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415 - only where there is a GPU

    out = torch.empty(x_BTC.shape, dtype=x_BTC.dtype, device=x_BTC.device)
    triton.norm(
        _rows(x_BTC),
        out_TC=out.view(-1, x_BTC.shape[-1]),
        epsilon=epsilon,
        tokens=x_BTC.shape[1],
        centered=centered,
        weight_C=None if weight_C is None else weight_C.contiguous(),
        bias_C=None if bias_C is None else bias_C.contiguous(),
        scale_BSC=_dense(scale_BSC),
        shift_BSC=_dense(shift_BSC),
        added_TC=None if added_BTC is None else _rows(added_BTC),
        gate_BSC=None if gate_BSC is None else _dense(gate_BSC),
    )
    return out


def compute_residual(x_BTC: torch.Tensor, added_BTC: torch.Tensor, gate_BSC: torch.Tensor) -> None:
    """`gated_residual` by the fastest implementation for these tensors."""
    if not x_BTC.numel() or not triton_support(x_BTC, added_BTC, gate_BSC).ok:
        reference.gated_residual(x_BTC, added_BTC, gate_BSC)
        return
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415 - only where there is a GPU

    triton.gated_residual(_rows(x_BTC), _rows(added_BTC), _dense(gate_BSC), tokens=x_BTC.shape[1])


@torch.library.custom_op("tessera::layer_norm", mutates_args=())
def layer_norm(
    x_TC: torch.Tensor, weight_C: torch.Tensor | None, bias_C: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """The op `tessera::layer_norm`."""
    return compute(x_TC, weight_C, bias_C, epsilon)


@layer_norm.register_fake
def _(
    x_TC: torch.Tensor,
    weight_C: torch.Tensor | None,  # noqa: ARG001
    bias_C: torch.Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
) -> torch.Tensor:
    return x_TC.new_empty(x_TC.shape)


@torch.library.custom_op("tessera::adaptive_norm", mutates_args=())
def adaptive_norm(
    x_BTC: torch.Tensor,
    scale_BSC: torch.Tensor,
    shift_BSC: torch.Tensor,
    weight_C: torch.Tensor | None,
    bias_C: torch.Tensor | None,
    epsilon: float,
    centered: bool,
) -> torch.Tensor:
    """The op `tessera::adaptive_norm`."""
    return compute_adaptive(x_BTC, None, None, scale_BSC, shift_BSC, weight_C, bias_C, epsilon, centered)


@adaptive_norm.register_fake
def _(
    x_BTC: torch.Tensor,
    scale_BSC: torch.Tensor,  # noqa: ARG001
    shift_BSC: torch.Tensor,  # noqa: ARG001
    weight_C: torch.Tensor | None,  # noqa: ARG001
    bias_C: torch.Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    centered: bool,  # noqa: ARG001
) -> torch.Tensor:
    return x_BTC.new_empty(x_BTC.shape)


@torch.library.custom_op("tessera::gated_adaptive_norm", mutates_args={"x_BTC"})
def gated_adaptive_norm(
    x_BTC: torch.Tensor,
    added_BTC: torch.Tensor,
    gate_BSC: torch.Tensor | None,
    scale_BSC: torch.Tensor,
    shift_BSC: torch.Tensor,
    weight_C: torch.Tensor | None,
    bias_C: torch.Tensor | None,
    epsilon: float,
    centered: bool,
) -> torch.Tensor:
    """The op `tessera::gated_adaptive_norm`."""
    return compute_adaptive(x_BTC, added_BTC, gate_BSC, scale_BSC, shift_BSC, weight_C, bias_C, epsilon, centered)


@gated_adaptive_norm.register_fake
def _(
    x_BTC: torch.Tensor,
    added_BTC: torch.Tensor,  # noqa: ARG001
    gate_BSC: torch.Tensor | None,  # noqa: ARG001
    scale_BSC: torch.Tensor,  # noqa: ARG001
    shift_BSC: torch.Tensor,  # noqa: ARG001
    weight_C: torch.Tensor | None,  # noqa: ARG001
    bias_C: torch.Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    centered: bool,  # noqa: ARG001
) -> torch.Tensor:
    return x_BTC.new_empty(x_BTC.shape)


@torch.library.custom_op("tessera::gated_residual", mutates_args={"x_BTC"})
def gated_residual(x_BTC: torch.Tensor, added_BTC: torch.Tensor, gate_BSC: torch.Tensor) -> None:
    """The op `tessera::gated_residual`."""
    compute_residual(x_BTC, added_BTC, gate_BSC)


@gated_residual.register_fake
def _(
    x_BTC: torch.Tensor,  # noqa: ARG001
    added_BTC: torch.Tensor,  # noqa: ARG001
    gate_BSC: torch.Tensor,  # noqa: ARG001
) -> None:
    return None
