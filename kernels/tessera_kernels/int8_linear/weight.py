"""The weight of `int8_linear`, and how a float weight is quantized to it.

Shape letters: K inputs, N outputs, M outlier columns. Knows nothing about who multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEVELS = 127
"""Largest quantized magnitude: -127 … 127 is symmetric around zero, so -128 is not used."""
SMALLEST_RANGE = 1e-5
"""Lower bound of the ranges that smoothing factors are made of: inputs that are always zero get a finite factor."""


@dataclass(frozen=True)
class Int8Weight:
    """A weight as `int8_linear` takes it: output = (quantized inputs · weight) · scales + outliers · outlier weight.

    Attributes:
        weight_KN: int8 [inputs, outputs], a transposed view, so the weights of one output are contiguous. Zero in
            outlier columns.
        scale_N: float32 [outputs].
        outlier_columns_M: int64, indices of the inputs that are multiplied in float; may be empty.
        outlier_weight_MN: float32, weights of the outlier columns, rounded to float16 unless float16 cannot hold them.
        smoothing_K: float32, factors that inputs are multiplied with before they are quantized.
    """

    weight_KN: torch.Tensor
    scale_N: torch.Tensor
    outlier_columns_M: torch.Tensor
    outlier_weight_MN: torch.Tensor
    smoothing_K: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(
            one.nbytes
            for one in (self.weight_KN, self.scale_N, self.outlier_columns_M, self.outlier_weight_MN, self.smoothing_K)
        )


def quantize_weight(
    weight_NK: torch.Tensor, outlier_columns_M: torch.Tensor | None = None, largest_K: torch.Tensor | None = None
) -> Int8Weight:
    """Quantize a float weight for `int8_linear`.

    Args:
        weight_NK: [outputs, inputs], any float dtype; not changed.
        outlier_columns_M: int64, indices of the inputs that are multiplied in float; None for no outlier columns.
        largest_K: the largest magnitude of each input in a calibration run; None for no smoothing.
    """
    device = weight_NK.device
    outlier_columns_M = (
        torch.zeros(0, dtype=torch.int64, device=device) if outlier_columns_M is None else outlier_columns_M.to(device)
    )
    largest_K = None if largest_K is None else largest_K.to(device)
    weight_NK = weight_NK.float().clone()
    outlier_weight_MN = weight_NK[:, outlier_columns_M].t().contiguous()
    # Weights of 16-bit checkpoints lose nothing here, and the compiled decoder can store them as float16.
    halves_MN = outlier_weight_MN.half()
    outlier_weight_MN = torch.where(halves_MN.isfinite(), halves_MN.float(), outlier_weight_MN)
    weight_NK[:, outlier_columns_M] = 0
    ones_K = torch.ones(weight_NK.shape[1], device=device)
    smoothing_K = ones_K if largest_K is None else _smoothing(weight_NK, outlier_columns_M, largest_K)
    weight_NK /= smoothing_K
    scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    return Int8Weight(
        (weight_NK / scale_N[:, None]).round_().to(torch.int8).t(),
        scale_N,
        outlier_columns_M,
        outlier_weight_MN,
        smoothing_K,
    )


def _smoothing(weight_NK: torch.Tensor, outlier_columns_M: torch.Tensor, largest_K: torch.Tensor) -> torch.Tensor:
    """Factors that give inputs and their weights equal ranges, with geometric mean 1; exactly 1 for outlier columns."""
    inputs_K = largest_K.float().clamp_min(SMALLEST_RANGE)
    weights_K = weight_NK.abs().amax(dim=0).clamp_min(SMALLEST_RANGE)
    logarithm_K = 0.5 * (weights_K.log() - inputs_K.log())
    is_quantized_K = torch.ones_like(logarithm_K, dtype=torch.bool).index_fill_(0, outlier_columns_M, False)
    if not is_quantized_K.any():
        return torch.ones_like(logarithm_K)
    logarithm_K -= logarithm_K[is_quantized_K].mean()
    return logarithm_K.masked_fill_(~is_quantized_K, 0.0).exp_()
