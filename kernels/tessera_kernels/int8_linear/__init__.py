"""A linear layer in 8 bits: weights scaled by output, inputs scaled by token, sums in exact integers.

Symmetric W8A8 with the outlier columns of LLM.int8() (Dettmers et al. 2022): inputs in which language models have
values many times larger than elsewhere are multiplied in float, so that they do not make the steps of all others
coarse. Other inputs are rounded as in ZeroQuant (Yao et al. 2022). A token's scale depends on that token alone, integer
sums have no rounding and float sums one order, so a row of the result is the same bits whatever shares its batch.

Shape letters: T tokens, K inputs, N outputs, M columns in float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.int8_linear import cpu, reference

__all__ = ["LEVELS", "Int8Weight", "int8_linear", "quantize_weight"]

LEVELS = reference.LEVELS


@dataclass(frozen=True)
class Int8Weight:
    """A weight as `int8_linear` takes it.

    Attributes:
        weight_KN: int8 [inputs, outputs], a transposed view: a row of the original is what one output reads. Zero in
            the columns that are in float.
        scale_N: float32.
        columns_M: int64, the inputs that are multiplied in float; may be none.
        float_MN: float32, their weights.
    """

    weight_KN: torch.Tensor
    scale_N: torch.Tensor
    columns_M: torch.Tensor
    float_MN: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(one.nbytes for one in (self.weight_KN, self.scale_N, self.columns_M, self.float_MN))


def quantize_weight(weight_NK: torch.Tensor, columns_M: torch.Tensor | None = None) -> Int8Weight:
    """Quantize a weight [outputs, inputs] of any float dtype, but for the inputs `columns_M` (int64)."""
    columns_M = torch.zeros(0, dtype=torch.int64) if columns_M is None else columns_M
    weight_NK = weight_NK.float().clone()
    float_MN = weight_NK[:, columns_M].t().contiguous()
    weight_NK[:, columns_M] = 0
    scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    return Int8Weight((weight_NK / scale_N[:, None]).round_().to(torch.int8).t(), scale_N, columns_M, float_MN)


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
    if cpu.suited(x_TK):
        return cpu.int8_linear(x_TK, weight, bias_N)
    return reference.int8_linear(x_TK, weight, bias_N)
