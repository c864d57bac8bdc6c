"""A linear layer in 8 bits: weights scaled by output, inputs scaled by token, sums in exact integers.

Symmetric W8A8 with the outlier columns of LLM.int8() (Dettmers et al. 2022): inputs in which language models have
values many times larger than elsewhere are multiplied in float, so they do not make the steps of all others coarse.
Other inputs are made smaller where they are large, and their weights larger (SmoothQuant, Xiao et al. 2023, with its
exponent of one half), then rounded as in ZeroQuant (Yao et al. 2022). A token's scale depends on that token alone,
integer sums have no rounding and float sums one order, so a row of the result is the same bits whatever shares its
batch.

Shape letters: T tokens, K inputs, N outputs, M columns in float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.int8_linear import cpu, reference

__all__ = ["LEVELS", "Int8Weight", "int8_linear", "quantize_weight"]

LEVELS = reference.LEVELS
SMALLEST_RANGE = 1e-5
"""Inputs and weights that never are larger are treated as if they were."""


@dataclass(frozen=True)
class Int8Weight:
    """A weight as `int8_linear` takes it.

    Attributes:
        weight_KN: int8 [inputs, outputs], a transposed view: a row of the original is what one output reads. Zero in
            the columns that are in float.
        scale_N: float32.
        columns_M: int64, the inputs that are multiplied in float; may be none.
        float_MN: float32, their weights, numbers that float16 has too unless they are too large for it.
        shrink_K: float32, what inputs are multiplied with before they are rounded.
    """

    weight_KN: torch.Tensor
    scale_N: torch.Tensor
    columns_M: torch.Tensor
    float_MN: torch.Tensor
    shrink_K: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(one.nbytes for one in (self.weight_KN, self.scale_N, self.columns_M, self.float_MN, self.shrink_K))


def quantize_weight(
    weight_NK: torch.Tensor, columns_M: torch.Tensor | None = None, largest_K: torch.Tensor | None = None
) -> Int8Weight:
    """Quantize a weight.

    Args:
        weight_NK: [outputs, inputs], any float dtype.
        columns_M: int64, the inputs that are multiplied in float.
        largest_K: the largest magnitude that each input is known to have; None where nothing is known.
    """
    device = weight_NK.device
    columns_M = torch.zeros(0, dtype=torch.int64, device=device) if columns_M is None else columns_M.to(device)
    largest_K = None if largest_K is None else largest_K.to(device)
    weight_NK = weight_NK.float().clone()
    float_MN = weight_NK[:, columns_M].t().contiguous()
    # Checkpoints have 16 bits, of which this loses none; and whoever reads them again and again may keep them so.
    halves_MN = float_MN.half()
    float_MN = torch.where(halves_MN.isfinite(), halves_MN.float(), float_MN)
    weight_NK[:, columns_M] = 0
    whole_K = torch.ones(weight_NK.shape[1], device=device)
    shrink_K = whole_K if largest_K is None else _shrink(weight_NK, columns_M, largest_K)
    weight_NK /= shrink_K
    scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    return Int8Weight(
        (weight_NK / scale_N[:, None]).round_().to(torch.int8).t(), scale_N, columns_M, float_MN, shrink_K
    )


def _shrink(weight_NK: torch.Tensor, columns_M: torch.Tensor, largest_K: torch.Tensor) -> torch.Tensor:
    """Factors that give inputs and weights equal ranges, around 1. A constant one for inputs that are not rounded."""
    inputs_K = largest_K.float().clamp_min(SMALLEST_RANGE)
    weights_K = weight_NK.abs().amax(dim=0).clamp_min(SMALLEST_RANGE)
    logarithm_K = 0.5 * (weights_K.log() - inputs_K.log())
    rounded_K = torch.ones_like(logarithm_K, dtype=torch.bool).index_fill_(0, columns_M, False)
    if not rounded_K.any():
        return torch.ones_like(logarithm_K)
    logarithm_K -= logarithm_K[rounded_K].mean()
    return logarithm_K.masked_fill_(~rounded_K, 0.0).exp_()


def int8_linear(x_TK: torch.Tensor, weight: Int8Weight, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """x · weight + bias.

    Args:
        x_TK: [tokens, inputs], any float dtype; each token is rounded to 255 levels of its own.
        weight: from `quantize_weight`.
        bias_N: float32 [outputs].

    Returns:
        [tokens, outputs], the dtype of `x`. A token with a value that is not finite gives none that is.

    Raises:
        ValueError: shapes or dtypes do not fit together; or there is one input alone, for which torch's integer product
            gives whatever was in memory (2.13, on a CPU).
    """
    weight_KN, scale_N = weight.weight_KN, weight.scale_N
    if x_TK.shape[1] == 1:
        raise ValueError("a layer of one input is not supported")
    if x_TK.shape[1] != weight_KN.shape[0] or scale_N.shape[0] != weight_KN.shape[1] or weight_KN.dtype != torch.int8:
        raise ValueError(
            f"inputs {tuple(x_TK.shape)}, {weight_KN.dtype} weights {tuple(weight_KN.shape)} and scales "
            f"{tuple(scale_N.shape)} do not fit together"
        )
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.tessera.int8_linear(
            x_TK, weight_KN, scale_N, weight.columns_M, weight.float_MN, weight.shrink_K, bias_N
        )
        return found
    return _run(x_TK, weight, bias_N)


def _run(x_TK: torch.Tensor, weight: Int8Weight, bias_N: torch.Tensor | None) -> torch.Tensor:
    if cpu.suited(x_TK):
        return cpu.int8_linear(x_TK, weight, bias_N)
    if triton_support(x_TK, weight.weight_KN, bias_N).ok:
        from tessera_kernels.int8_linear import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

        return triton.int8_linear(x_TK, weight, bias_N)
    return reference.int8_linear(x_TK, weight, bias_N)


@torch.library.custom_op("tessera::int8_linear", mutates_args=())
def _registered(
    x_TK: torch.Tensor,
    weight_KN: torch.Tensor,
    scale_N: torch.Tensor,
    columns_M: torch.Tensor,
    float_MN: torch.Tensor,
    shrink_K: torch.Tensor,
    bias_N: torch.Tensor | None,
) -> torch.Tensor:
    return _run(x_TK, Int8Weight(weight_KN, scale_N, columns_M, float_MN, shrink_K), bias_N)


@_registered.register_fake
def _(x_TK: torch.Tensor, weight_KN: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TK.new_empty(x_TK.shape[0], weight_KN.shape[1])
