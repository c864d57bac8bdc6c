"""WEIGHT"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEVELS = 127
"""Largest magnitude of an 8-bit integer that is used, so that the scale is symmetric."""
SMALLEST_RANGE = 1e-5
"""Inputs and weights that never are larger are treated as if they were."""


@dataclass(frozen=True)
class Int8Weight:
    """A weight as `int8_linear` takes it.

    Attributes:
        weight_KN: int8 [inputs, outputs], a transposed view: a row of the original is what one output reads. Zero in
            the columns that are in float.
        scale_N: float32.
        outlier_columns_M: int64, the inputs that are multiplied in float; may be none.
        outlier_weight_MN: float32, their weights, numbers that float16 has too unless they are too large for it.
        smoothing_K: float32, what inputs are multiplied with before they are rounded.
    """

    weight_KN: torch.Tensor
    scale_N: torch.Tensor
    outlier_columns_M: torch.Tensor
    outlier_weight_MN: torch.Tensor
    smoothing_K: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(
            one.nbytes
            for one in (self.weight_KN, self.scale_N, self.outlier_columns_M, self.outlier_weight_MN, self.smoothing_K)
        )


def quantize_weight(
    weight_NK: torch.Tensor, outlier_columns_M: torch.Tensor | None = None, largest_K: torch.Tensor | None = None
) -> Int8Weight:
    """Quantize a weight.

    Args:
        weight_NK: [outputs, inputs], any float dtype.
        outlier_columns_M: int64, the inputs that are multiplied in float.
        largest_K: the largest magnitude that each input is known to have; None where nothing is known.
    """
    device = weight_NK.device
    outlier_columns_M = (
        torch.zeros(0, dtype=torch.int64, device=device) if outlier_columns_M is None else outlier_columns_M.to(device)
    )
    largest_K = None if largest_K is None else largest_K.to(device)
    weight_NK = weight_NK.float().clone()
    outlier_weight_MN = weight_NK[:, outlier_columns_M].t().contiguous()
    # Checkpoints have 16 bits, of which this loses none; and whoever reads them again and again may keep them so.
    halves_MN = outlier_weight_MN.half()
    outlier_weight_MN = torch.where(halves_MN.isfinite(), halves_MN.float(), outlier_weight_MN)
    weight_NK[:, outlier_columns_M] = 0
    whole_K = torch.ones(weight_NK.shape[1], device=device)
    smoothing_K = whole_K if largest_K is None else _shrink(weight_NK, outlier_columns_M, largest_K)
    weight_NK /= smoothing_K
    scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    return Int8Weight(
        (weight_NK / scale_N[:, None]).round_().to(torch.int8).t(),
        scale_N,
        outlier_columns_M,
        outlier_weight_MN,
        smoothing_K,
    )


def _shrink(weight_NK: torch.Tensor, outlier_columns_M: torch.Tensor, largest_K: torch.Tensor) -> torch.Tensor:
    """Factors that give inputs and weights equal ranges, around 1. A constant one for inputs that are not rounded."""
    inputs_K = largest_K.float().clamp_min(SMALLEST_RANGE)
    weights_K = weight_NK.abs().amax(dim=0).clamp_min(SMALLEST_RANGE)
    logarithm_K = 0.5 * (weights_K.log() - inputs_K.log())
    rounded_K = torch.ones_like(logarithm_K, dtype=torch.bool).index_fill_(0, outlier_columns_M, False)
    if not rounded_K.any():
        return torch.ones_like(logarithm_K)
    logarithm_K -= logarithm_K[rounded_K].mean()
    return logarithm_K.masked_fill_(~rounded_K, 0.0).exp_()
