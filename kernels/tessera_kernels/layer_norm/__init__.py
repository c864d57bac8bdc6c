"""Layer normalization (Ba et al. 2016), plain, and modulated after a gated residual as in diffusion transformers.

A block of Wan, LTX or CogVideoX computes `norm(x) · (1 + scale) + shift`, where scale and shift follow from the
timestep (adaptive layer norm, Peebles & Xie 2023), and adds the output y of a layer as `x + gate · y`. Each function
here is one pass over memory on a GPU. Knows nothing of blocks.

Shape letters: B samples, T tokens, C channels, S is 1 or T: one modulation for the sample, or one for each token.
"""

from __future__ import annotations

import torch

from tessera_kernels.layer_norm import registered

__all__ = ["adaptive_norm", "gated_residual", "layer_norm"]


def layer_norm(
    x_TC: torch.Tensor, weight_C: torch.Tensor | None = None, bias_C: torch.Tensor | None = None, *, epsilon: float
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + epsilon) · weight + bias, computed in float32.

    Args:
        x_TC: [..., channels], any float dtype.
        weight_C: [channels], or None for ones.
        bias_C: [channels], or None for zeros.
        epsilon: added to the variance, so that the root is not zero.

    Returns:
        A contiguous tensor of the shape and dtype of `x`.

    Raises:
        ValueError: the shape of weight or bias does not fit.
    """
    _check_vectors(x_TC, weight_C, bias_C)
    if torch.compiler.is_compiling():
        normalized: torch.Tensor = registered.layer_norm(x_TC, weight_C, bias_C, epsilon)
        return normalized
    return registered.compute(x_TC, weight_C, bias_C, epsilon)


def adaptive_norm(
    x_BTC: torch.Tensor,
    scale_BSC: torch.Tensor,
    shift_BSC: torch.Tensor,
    *,
    epsilon: float,
    weight_C: torch.Tensor | None = None,
    bias_C: torch.Tensor | None = None,
    centered: bool = True,
    added_BTC: torch.Tensor | None = None,
    gate_BSC: torch.Tensor | None = None,
) -> torch.Tensor:
    """norm(x) · (1 + scale) + shift; if `added` is given, x is first replaced by x + gate · added, in place.

    Args:
        x_BTC: any float dtype; contiguous if `added` is given.
        scale_BSC: any float dtype (Wan computes it in float32), [B, 1 or T, C], with contiguous channels.
        shift_BSC: any float dtype, [B, 1 or T, C], with contiguous channels.
        epsilon: added to the variance, so that the root is not zero.
        weight_C: weight of the norm, or None for ones.
        bias_C: bias of the norm, or None for zeros.
        centered: whether the mean is subtracted; without it the norm is RMSNorm (LTX).
        added_BTC: output of a layer, in the shape and dtype of x.
        gate_BSC: factor on `added`, in a shape as `scale`; None for ones.

    Returns:
        A contiguous tensor of the shape and dtype of `x`. The sum is rounded to the dtype of x, as it is stored, before
        it is normalized.

    Raises:
        ValueError: shapes do not fit together.
    """
    _check_vectors(x_BTC, weight_C, bias_C)
    for name, modulation in (("scale", scale_BSC), ("shift", shift_BSC), ("gate", gate_BSC)):
        _check_modulation(name, modulation, x_BTC)
    if added_BTC is not None:
        _check_added(x_BTC, added_BTC)
    elif gate_BSC is not None:
        raise ValueError("a gate is for what is added, and nothing is")
    rest = (scale_BSC, shift_BSC, weight_C, bias_C, epsilon, centered)
    if not torch.compiler.is_compiling():
        return registered.compute_adaptive(x_BTC, added_BTC, gate_BSC, *rest)
    normalized: torch.Tensor
    if added_BTC is None:
        normalized = registered.adaptive_norm(x_BTC, *rest)
    else:
        normalized = registered.gated_adaptive_norm(x_BTC, added_BTC, gate_BSC, *rest)
    return normalized


def gated_residual(x_BTC: torch.Tensor, added_BTC: torch.Tensor, gate_BSC: torch.Tensor) -> None:
    """Replace x by x + gate · added, in place, computed in float32.

    Args:
        x_BTC: any float dtype, contiguous.
        added_BTC: output of a layer, in the shape and dtype of x.
        gate_BSC: any float dtype, [B, 1 or T, C].

    Raises:
        ValueError: shapes do not fit together.
    """
    _check_added(x_BTC, added_BTC)
    _check_modulation("gate", gate_BSC, x_BTC)
    if torch.compiler.is_compiling():
        registered.gated_residual(x_BTC, added_BTC, gate_BSC)
    else:
        registered.compute_residual(x_BTC, added_BTC, gate_BSC)


def _check_vectors(x_TC: torch.Tensor, weight_C: torch.Tensor | None, bias_C: torch.Tensor | None) -> None:
    for name, vector in (("weight", weight_C), ("bias", bias_C)):
        if vector is not None and vector.shape != x_TC.shape[-1:]:
            raise ValueError(f"a {name} of shape {tuple(vector.shape)} does not fit rows of {x_TC.shape[-1]}")


def _check_modulation(name: str, modulation: torch.Tensor | None, x_BTC: torch.Tensor) -> None:
    if x_BTC.dim() != 3:
        raise ValueError(f"x must be [samples, tokens, channels], not of shape {tuple(x_BTC.shape)}")
    samples, tokens, channels = x_BTC.shape
    if modulation is not None and modulation.shape not in {(samples, 1, channels), (samples, tokens, channels)}:
        raise ValueError(
            f"{name} must be of shape ({samples}, 1 or {tokens}, {channels}), not {tuple(modulation.shape)}"
        )


def _check_added(x_BTC: torch.Tensor, added_BTC: torch.Tensor) -> None:
    if added_BTC.shape != x_BTC.shape or added_BTC.dtype != x_BTC.dtype:
        raise ValueError(
            f"what is added must be as x, {x_BTC.dtype} {tuple(x_BTC.shape)}, "
            f"not {added_BTC.dtype} {tuple(added_BTC.shape)}"
        )
    if not x_BTC.is_contiguous():
        raise ValueError(f"x is written in place, so it must be contiguous: its strides are {x_BTC.stride()}")
