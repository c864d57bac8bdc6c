"""Gated activation of a feed-forward layer (Shazeer 2020, GLU variants): act(gate) · up of one packed projection.

SwiGLU and GeGLU; `gated_activation_quantized` quantizes the result for the next linear layer, in the same pass on a
GPU. Knows nothing of layers. Shape letters: T rows, I inner features, J = 2 · I.
"""

from __future__ import annotations

import torch

from tessera_kernels.gated_activation import registered
from tessera_kernels.gated_activation.reference import ACTIVATIONS
from tessera_kernels.triton_parts.row_quantize_reference import check_quantized

__all__ = ["ACTIVATIONS", "gated_activation", "gated_activation_quantized"]


def gated_activation(packed_TJ: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """act(first half) · second half, computed in float32.

    Args:
        packed_TJ: [..., 2 · inner features], any float dtype: gate, then up.
        activation: `silu`, `gelu` (exact) or `gelu_tanh` (Hendrycks & Gimpel 2016, its approximation).

    Returns:
        [..., inner features], in the dtype of the input.

    Raises:
        ValueError: an odd number of features, or an unknown activation.
    """
    _check(packed_TJ, activation)
    if torch.compiler.is_compiling():
        gated: torch.Tensor = registered.gated_activation(packed_TJ, activation)
        return gated
    return registered.compute(packed_TJ, activation)


def gated_activation_quantized(
    packed_TJ: torch.Tensor, dtype: torch.dtype, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gated_activation`, quantized with a scale for each row.

    The scale is the largest magnitude of the row over the largest value of the dtype. A row that is not finite has a
    scale that is not finite; other rows are not affected.

    Args:
        packed_TJ: [..., 2 · inner features], any float dtype: gate, then up.
        dtype: int8 or float8_e4m3fn.
        activation: as in `gated_activation`.

    Returns:
        Quantized elements [..., inner features] of `dtype`, and float32 scales [...].

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
    return registered.compute_quantized(packed_TJ, dtype, activation)


def _check(packed_TJ: torch.Tensor, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"there is no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
    if not packed_TJ.dim() or packed_TJ.shape[-1] % 2:
        raise ValueError(f"gate and up must be two halves of the last axis, not of shape {tuple(packed_TJ.shape)}")
