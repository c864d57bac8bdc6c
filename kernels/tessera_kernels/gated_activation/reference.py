"""`gated_activation` in plain torch. T rows, I inner features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from tessera_kernels.triton_parts.row_quantize_reference import quantized_rows

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


def gated_activation(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    """Reference of `tessera_kernels.gated_activation.gated_activation`."""
    return _gated(packed_TJ, activation).to(packed_TJ.dtype)


def gated_activation_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `tessera_kernels.gated_activation.gated_activation_quantized`."""
    return quantized_rows(_gated(packed_TJ, activation), dtype)


def _gated(packed_TJ: torch.Tensor, activation: str) -> torch.Tensor:
    gate_TI, up_TI = packed_TJ.float().chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate_TI) * up_TI
