"""A linear layer in 8 bits: weights scaled by output, inputs scaled by token, sums in exact integers.

Symmetric W8A8: weights as in LLM.int8() (Dettmers et al. 2022, without its outlier path), inputs as in ZeroQuant (Yao
et al. 2022). A token's scale depends on that token alone and integer sums have no rounding, so a row of the result is
the same bits whatever shares its batch.
"""

from __future__ import annotations

import torch

from tessera_kernels.int8_linear import cpu, reference

__all__ = ["LEVELS", "int8_linear", "quantize_weight"]

LEVELS = reference.LEVELS


def quantize_weight(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight as `int8_linear` takes it.

    Args:
        weight_NK: [outputs, inputs], any float dtype.

    Returns:
        int8 [inputs, outputs] (a transposed view: a row of the original is what one output reads) and float32 scales
        [outputs].
    """
    weight_NK = weight_NK.float()
    scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    return (weight_NK / scale_N[:, None]).round_().to(torch.int8).t(), scale_N


def int8_linear(
    x_TK: torch.Tensor, weight_KN: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """x · weight · scale + bias.

    Args:
        x_TK: [tokens, inputs], any float dtype; each token is rounded to 255 levels of its own.
        weight_KN: int8, from `quantize_weight`.
        scale_N: float32, from `quantize_weight`.
        bias_N: float32 [outputs].

    Returns:
        [tokens, outputs], the dtype of `x`. A token with a value that is not finite gives none that is.

    Raises:
        ValueError: shapes or dtypes do not fit together; or there is one input alone, for which torch's integer product
            gives whatever was in memory (2.13, on a CPU).
    """
    if x_TK.shape[1] == 1:
        raise ValueError("a layer of one input is not supported")
    if x_TK.shape[1] != weight_KN.shape[0] or scale_N.shape[0] != weight_KN.shape[1] or weight_KN.dtype != torch.int8:
        raise ValueError(
            f"inputs {tuple(x_TK.shape)}, {weight_KN.dtype} weights {tuple(weight_KN.shape)} and scales "
            f"{tuple(scale_N.shape)} do not fit together"
        )
    if cpu.suited(x_TK):
        return cpu.int8_linear(x_TK, weight_KN, scale_N, bias_N)
    return reference.int8_linear(x_TK, weight_KN, scale_N, bias_N)
