"""`gated_activation` as torch.compile and CUDA graphs see it, and which implementation it runs.

Outputs are contiguous on every device. Does not check arguments: the public functions do. T rows, I inner features.
"""

from __future__ import annotations

import torch

from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.gated_activation import reference

WIDEST = 16384
"""Inner features of the widest row that is quantized in registers."""


def quantizing_suits(packed_TJ: torch.Tensor, dtype: torch.dtype) -> Support:
    """Whether the kernel can run with a quantized result, and why not."""
    if packed_TJ.shape[-1] > 2 * WIDEST:
        return unsupported(f"rows of {packed_TJ.shape[-1] // 2} features do not fit into registers ({WIDEST} do)")
    if dtype == torch.float8_e4m3fn and not has_float8(packed_TJ.device):
        return unsupported("the device has no float8")
    return triton_support(packed_TJ)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[T, J] with contiguous features."""
    rows_TJ = tensor.reshape(-1, tensor.shape[-1])
    return rows_TJ if rows_TJ.stride(-1) == 1 else rows_TJ.contiguous()


def _empty(packed_TJ: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    shape = (*packed_TJ.shape[:-1], packed_TJ.shape[-1] // 2)
    return torch.empty(shape, dtype=dtype, device=packed_TJ.device)


def computed(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    """`gated_activation` by the fastest implementation for this tensor."""
    if not triton_support(packed_TJ).ok or not packed_TJ.numel():
        return reference.gated_activation(packed_TJ, activation).contiguous()
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - only where there is a GPU

    out = _empty(packed_TJ, packed_TJ.dtype)
    triton.gated_activation(_rows(packed_TJ), activation, out_TI=out.view(-1, out.shape[-1]))
    return out


def computed_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gated_activation_quantized`, likewise."""
    if not quantizing_suits(packed_TJ, dtype).ok or not packed_TJ.numel():
        numbers, scale = reference.gated_activation_quantized(packed_TJ, dtype, activation)
        return numbers.contiguous(), scale.contiguous()
    from tessera_kernels.gated_activation import triton  # noqa: PLC0415 - only where there is a GPU

    out = _empty(packed_TJ, dtype)
    scale = torch.empty(packed_TJ.shape[:-1], dtype=torch.float32, device=packed_TJ.device)
    rows_TJ, out_TI = _rows(packed_TJ), out.view(-1, out.shape[-1])
    triton.gated_activation(rows_TJ, activation, out_TI=out_TI, scale_T=scale.view(-1))
    return out, scale


@torch.library.custom_op("tessera::gated_activation", mutates_args=())
def gated_activation(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    """The op `tessera::gated_activation`."""
    return computed(packed_TJ, activation)


@gated_activation.register_fake
def _(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:  # noqa: ARG001
    return _empty(packed_TJ, packed_TJ.dtype)


@torch.library.custom_op("tessera::gated_activation_quantized", mutates_args=())
def gated_activation_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op `tessera::gated_activation_quantized`."""
    return computed_quantized(packed_TJ, dtype, activation)


@gated_activation_quantized.register_fake
def _(packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    return _empty(packed_TJ, dtype), torch.empty(packed_TJ.shape[:-1], dtype=torch.float32, device=packed_TJ.device)
