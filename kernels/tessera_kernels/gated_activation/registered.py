"""Registers `gated_activation` for torch.compile and CUDA graphs, and chooses the implementation that runs.

Outputs are contiguous on every device. Checks no arguments: the public functions do. Shape letters: T rows, I inner
features, J = 2 · I.
"""

from __future__ import annotations

import torch

from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.gated_activation import reference

WIDEST = 16384
"""Most inner features of a row that the kernel quantizes, because it holds whole rows in registers."""


def quantizing_support(packed_TJ: torch.Tensor, dtype: torch.dtype) -> Support:
    """Whether the quantizing kernel supports this tensor and a result of `dtype`."""
    if packed_TJ.shape[-1] > 2 * WIDEST:
        return unsupported(f"rows of {packed_TJ.shape[-1] // 2} features do not fit into registers ({WIDEST} do)")
    if dtype == torch.float8_e4m3fn and not has_float8(packed_TJ.device):
        return unsupported("the device has no float8")
    return triton_support(packed_TJ)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as [T, J] with contiguous features."""
    rows_TJ = tensor.reshape(-1, tensor.shape[-1])
    return rows_TJ if rows_TJ.stride(-1) == 1 else rows_TJ.contiguous()


def _empty(packed_TJ: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    shape = (*packed_TJ.shape[:-1], packed_TJ.shape[-1] // 2)
    return torch.empty(shape, dtype=dtype, device=packed_TJ.device)


def compute(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    """`gated_activation` by the fastest implementation for this tensor."""
    if not triton_support(packed_TJ).ok or not packed_TJ.numel():
        return reference.gated_activation(packed_TJ, activation).contiguous()
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - only where there is a GPU

    out = _empty(packed_TJ, packed_TJ.dtype)
    triton.gated_activation(_rows(packed_TJ), activation, out_TI=out.view(-1, out.shape[-1]))
    return out


def compute_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gated_activation_quantized` by the fastest implementation for this tensor."""
    if not quantizing_support(packed_TJ, dtype).ok or not packed_TJ.numel():
        quantized, scale = reference.gated_activation_quantized(packed_TJ, dtype, activation)
        return quantized.contiguous(), scale.contiguous()
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - only where there is a GPU

    out = _empty(packed_TJ, dtype)
    scale = torch.empty(packed_TJ.shape[:-1], dtype=torch.float32, device=packed_TJ.device)
    rows_TJ, out_TI = _rows(packed_TJ), out.view(-1, out.shape[-1])
    triton.gated_activation(rows_TJ, activation, out_TI=out_TI, scale_T=scale.view(-1))
    return out, scale


@torch.library.custom_op("tessera::gated_activation", mutates_args=())
def gated_activation(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    """The op `tessera::gated_activation`."""
    return compute(packed_TJ, activation)


@gated_activation.register_fake
def _(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:  # noqa: ARG001
    return _empty(packed_TJ, packed_TJ.dtype)


@torch.library.custom_op("tessera::gated_activation_quantized", mutates_args=())
def gated_activation_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op `tessera::gated_activation_quantized`."""
    return compute_quantized(packed_TJ, dtype, activation)


@gated_activation_quantized.register_fake
def _(packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    return _empty(packed_TJ, dtype), torch.empty(packed_TJ.shape[:-1], dtype=torch.float32, device=packed_TJ.device)
