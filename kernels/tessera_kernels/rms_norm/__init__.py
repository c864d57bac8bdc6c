"""Root-mean-square layer normalization (Zhang & Sennrich 2019), alone or fused with its neighbours in a transformer.

`add_rms_norm` adds the residual first; `rms_norm_quantized` quantizes the result for the next linear layer. Each is one
pass over memory on a GPU. Knows nothing of models. Shape letters: T rows, K features.
"""

from __future__ import annotations

import torch

from tessera_kernels.rms_norm import cpu, registered
from tessera_kernels.triton_parts.row_quantize_reference import check_quantized

__all__ = ["add_rms_norm", "rms_norm", "rms_norm_quantized"]


def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, *, offset: float = 0.0) -> torch.Tensor:
    """x / sqrt(mean(x²) + epsilon) · (weight + offset), computed in float32.

    Args:
        x_TK: [..., features], any float dtype.
        weight_K: [features].
        epsilon: added to the mean square, so that the root is not zero.
        offset: added to the weight; 1 for Gemma, which stores weight - 1.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ValueError: the shape of the weight does not fit.
    """
    if weight_K.shape != x_TK.shape[-1:]:
        raise ValueError(f"a weight of shape {tuple(weight_K.shape)} does not fit rows of {x_TK.shape[-1]}")
    if torch.compiler.is_compiling():
        normalized: torch.Tensor = registered.rms_norm(x_TK, weight_K, epsilon, offset)
        return normalized
    if cpu.suited(x_TK, weight_K):
        return cpu.rms_norm(x_TK, weight_K, epsilon, offset)
    return registered.compute(x_TK, weight_K, epsilon, offset)


def add_rms_norm(
    x_TK: torch.Tensor, residual_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, *, offset: float = 0.0
) -> torch.Tensor:
    """Add x to the residual in place, and normalize the sum, rounded to its dtype as it is stored.

    Args:
        x_TK: [..., features], any float dtype.
        residual_TK: contiguous, in the shape and dtype of x; replaced by the sum.
        weight_K: [features].
        epsilon: added to the mean square, so that the root is not zero.
        offset: added to the weight.

    Returns:
        The normalized sum, in the shape and dtype of `x`.

    Raises:
        ValueError: weight or residual do not fit.
    """
    _check(x_TK, weight_K, residual_TK)
    if torch.compiler.is_compiling():
        normalized: torch.Tensor = registered.add_rms_norm(x_TK, residual_TK, weight_K, epsilon, offset)
        return normalized
    return registered.compute_sum(x_TK, residual_TK, weight_K, epsilon, offset)


def rms_norm_quantized(
    x_TK: torch.Tensor,
    weight_K: torch.Tensor,
    epsilon: float,
    dtype: torch.dtype,
    *,
    residual_TK: torch.Tensor | None = None,
    offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm`, or `add_rms_norm` if there is a residual, quantized with a scale for each row.

    The scale is the largest magnitude of the row over the largest value of the dtype. A row that is not finite has a
    scale that is not finite; other rows are not affected.

    Args:
        x_TK: [..., features], any float dtype.
        weight_K: [features].
        epsilon: added to the mean square, so that the root is not zero.
        dtype: int8 or float8_e4m3fn.
        residual_TK: contiguous, in the shape and dtype of x; replaced by the sum. None for no residual.
        offset: added to the weight.

    Returns:
        Quantized elements of `dtype` in the shape of `x`, and float32 scales [...]. Elements times scales are the
        result of `rms_norm`.

    Raises:
        ValueError: weight or residual do not fit, or the dtype is neither.
    """
    _check(x_TK, weight_K, residual_TK)
    check_quantized(dtype)
    if torch.compiler.is_compiling():
        quantized: tuple[torch.Tensor, torch.Tensor]
        if residual_TK is None:
            quantized = registered.rms_norm_quantized(x_TK, weight_K, epsilon, offset, dtype)
        else:
            quantized = registered.add_rms_norm_quantized(x_TK, residual_TK, weight_K, epsilon, offset, dtype)
        return quantized
    return registered.compute_quantized(x_TK, residual_TK, weight_K, epsilon, offset, dtype)


def _check(x_TK: torch.Tensor, weight_K: torch.Tensor, residual_TK: torch.Tensor | None) -> None:
    if weight_K.shape != x_TK.shape[-1:]:
        raise ValueError(f"a weight of shape {tuple(weight_K.shape)} does not fit rows of {x_TK.shape[-1]}")
    if residual_TK is None:
        return
    if residual_TK.shape != x_TK.shape or residual_TK.dtype != x_TK.dtype:
        raise ValueError(
            f"a residual must be as x, {x_TK.dtype} {tuple(x_TK.shape)}, "
            f"not {residual_TK.dtype} {tuple(residual_TK.shape)}"
        )
    if not residual_TK.is_contiguous():
        raise ValueError(
            f"a residual is written in place, so it must be contiguous: its strides {residual_TK.stride()}"
        )
