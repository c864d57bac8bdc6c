"""Registers `rms_norm` and its variants for torch.compile and CUDA graphs, and chooses the implementation that runs.

Outputs are contiguous on every device. Checks no arguments: the public functions do. Shape letters: T rows, K features.
"""

from __future__ import annotations

import torch

from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.rms_norm import reference

WIDEST = 16384
"""Most features of a row that the Triton kernel holds in registers."""


def kernel_support(x_TK: torch.Tensor, weight_K: torch.Tensor, dtype: torch.dtype | None = None) -> Support:
    """Whether the Triton kernel supports these tensors and, if given, a result of `dtype`."""
    if not x_TK.numel():
        return unsupported("there is nothing to compute")
    if dtype == torch.float8_e4m3fn and not has_float8(x_TK.device):
        return unsupported("the device has no float8")
    if x_TK.shape[-1] > WIDEST:
        return unsupported(f"rows of {x_TK.shape[-1]} features do not fit into registers ({WIDEST} do)")
    return triton_support(x_TK, weight_K)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as [T, K] with contiguous features."""
    rows_TK = tensor.reshape(-1, tensor.shape[-1])
    return rows_TK if rows_TK.stride(-1) == 1 or rows_TK.shape[-1] == 1 else rows_TK.contiguous()


def compute(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    """`rms_norm` by the fastest implementation for these tensors."""
    if not kernel_support(x_TK, weight_K).ok:
        return reference.rms_norm(x_TK, weight_K, epsilon, offset)
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415 - only where there is a GPU

    out = torch.empty(x_TK.shape, dtype=x_TK.dtype, device=x_TK.device)
    triton.rms_norm(_rows(x_TK), weight_K.contiguous(), epsilon, offset, out_TK=out.view(-1, x_TK.shape[-1]))
    return out


def compute_sum(
    x_TK: torch.Tensor, residual_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float
) -> torch.Tensor:
    """`add_rms_norm` by the fastest implementation for these tensors."""
    if not kernel_support(x_TK, weight_K).ok:
        return compute(residual_TK.add_(x_TK), weight_K, epsilon, offset)
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415 - only where there is a GPU

    out = torch.empty(x_TK.shape, dtype=x_TK.dtype, device=x_TK.device)
    triton.rms_norm(
        _rows(x_TK),
        weight_K.contiguous(),
        epsilon,
        offset,
        residual_TK=_rows(residual_TK),
        out_TK=out.view(-1, x_TK.shape[-1]),
    )
    return out


def compute_quantized(
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor | None,
    weight_K: torch.Tensor,
    epsilon: float,
    offset: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm_quantized` by the fastest implementation for these tensors."""
    if not kernel_support(x_TK, weight_K, dtype).ok:
        summed_TK = x_TK if residual_TK is None else residual_TK.add_(x_TK)
        return reference.rms_norm_quantized(summed_TK, weight_K, epsilon, offset, dtype)
    from tessera_kernels.rms_norm import triton  # noqa: PLC0415 - only where there is a GPU

    out, scale = _empty_quantized(x_TK, dtype)
    triton.rms_norm(
        _rows(x_TK),
        weight_K.contiguous(),
        epsilon,
        offset,
        residual_TK=None if residual_TK is None else _rows(residual_TK),
        out_TK=out.view(-1, x_TK.shape[-1]),
        scale_T=scale.view(-1),
    )
    return out, scale


def _empty_quantized(x_TK: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(x_TK.shape, dtype=dtype, device=x_TK.device),
        torch.empty(x_TK.shape[:-1], dtype=torch.float32, device=x_TK.device),
    )


@torch.library.custom_op("tessera::rms_norm", mutates_args=())
def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    """The op `tessera::rms_norm`."""
    return compute(x_TK, weight_K, epsilon, offset).contiguous()


@rms_norm.register_fake
def _(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:  # noqa: ARG001
    return x_TK.new_empty(x_TK.shape)


@torch.library.custom_op("tessera::add_rms_norm", mutates_args={"residual_TK"})
def add_rms_norm(
    x_TK: torch.Tensor, residual_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float
) -> torch.Tensor:
    """The op `tessera::add_rms_norm`."""
    return compute_sum(x_TK, residual_TK, weight_K, epsilon, offset).contiguous()


@add_rms_norm.register_fake
def _(
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor,  # noqa: ARG001
    weight_K: torch.Tensor,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    offset: float,  # noqa: ARG001
) -> torch.Tensor:
    return x_TK.new_empty(x_TK.shape)


@torch.library.custom_op("tessera::rms_norm_quantized", mutates_args=())
def rms_norm_quantized(
    x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op `tessera::rms_norm_quantized`."""
    quantized, scale = compute_quantized(x_TK, None, weight_K, epsilon, offset, dtype)
    return quantized.contiguous(), scale.contiguous()


@rms_norm_quantized.register_fake
def _(
    x_TK: torch.Tensor,
    weight_K: torch.Tensor,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    offset: float,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty_quantized(x_TK, dtype)


@torch.library.custom_op("tessera::add_rms_norm_quantized", mutates_args={"residual_TK"})
def add_rms_norm_quantized(
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor,
    weight_K: torch.Tensor,
    epsilon: float,
    offset: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op `tessera::add_rms_norm_quantized`."""
    quantized, scale = compute_quantized(x_TK, residual_TK, weight_K, epsilon, offset, dtype)
    return quantized.contiguous(), scale.contiguous()


@add_rms_norm_quantized.register_fake
def _(
    x_TK: torch.Tensor,
    residual_TK: torch.Tensor,  # noqa: ARG001
    weight_K: torch.Tensor,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    offset: float,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty_quantized(x_TK, dtype)
