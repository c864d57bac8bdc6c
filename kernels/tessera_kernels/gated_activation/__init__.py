"""Gated activation of a feed-forward layer (Shazeer 2020, GLU variants): act(gate) · up, of one packed projection.

SwiGLU and GeGLU; `gated_activation_quantized` quantizes for the linear after it in the same pass on a GPU. Does not
know layers. T rows, I inner features.
"""

from __future__ import annotations

import torch

from tessera_kernels.gated_activation import registered
from tessera_kernels.gated_activation.reference import ACTIVATIONS
from tessera_kernels.triton_parts.row_quantize_reference import check_quantized

__all__ = ["ACTIVATIONS", "gated_activation", "gated_activation_quantized"]


def gated_activation(packed_TJ: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """act(first half) · second half, in float32 inside.

    Args:
        packed_TJ: [..., 2 · inner features], any float dtype: gate, then up.
        activation: `silu`, `gelu` (exact) or `gelu_tanh` (Hendrycks & Gimpel 2016, its approximation).

    Returns:
        [..., inner features], of its dtype.

    Raises:
        ValueError: an odd number of features, or an unknown activation.
    """
    _check(packed_TJ, activation)
    if torch.compiler.is_compiling():
        gated: torch.Tensor = registered.gated_activation(packed_TJ, activation)
        return gated
    return registered.computed(packed_TJ, activation)


def gated_activation_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gated_activation`, quantized with a scale for each row.

    The scale is the row's largest magnitude over the dtype's largest number; a row that is not finite has a scale that
    is not finite, and spoils no other.

    Args:
        packed_TJ: [..., 2 · inner features], any float dtype: gate, then up.
        dtype: int8 or float8_e4m3fn.
        activation: as in `gated_activation`.

    Returns:
        Numbers [..., inner features] of `dtype`, and float32 scales [...].

    Raises:
        ValueError: an odd number of features, an unknown activation, or another dtype.
    """
    _check(packed_TJ, activation)
    check_quantized(dtype)
    if torch.compiler.is_compiling():
        quantized: tuple[torch.Tensor, torch.Tensor] = registered.gated_activation_quantized(
            packed_TJ, dtype, activation
        )
        return quantized
    return registered.computed_quantized(packed_TJ, dtype, activation)


def _check(packed_TJ: torch.Tensor, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"there is no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
    if not packed_TJ.dim() or packed_TJ.shape[-1] % 2:
        raise ValueError(f"gate and up must be two halves of the last axis, not of shape {tuple(packed_TJ.shape)}")
