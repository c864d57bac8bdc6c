"""A linear layer in 8 bits: one scale for each output's weights, one for each token's inputs, exact integer sums.

Symmetric W8A8 with the outlier columns of LLM.int8() (Dettmers et al. 2022): inputs in which language models have
values many times larger than elsewhere are multiplied in float, so they do not coarsen the scale of all others. Large
values of the other inputs are moved into their weights (SmoothQuant, Xiao et al. 2023, with its exponent of one half);
then each token is quantized with a scale of its own as in ZeroQuant (Yao et al. 2022). A token's scale depends on that
token alone, integer sums are exact and float sums have one order, so a row of the result has the same bits whatever
other rows are in the batch.

Shape letters: T tokens, K inputs, N outputs, M outlier columns.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.int8_linear import cpu, reference
from tessera_kernels.int8_linear.weight import LEVELS, Int8Weight, quantize_weight

__all__ = ["LEVELS", "Int8Weight", "int8_linear", "quantize_weight"]


def int8_linear(x_TK: torch.Tensor, weight: Int8Weight, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """x · weight + bias.

    Args:
        x_TK: [tokens, inputs], any float dtype; each token is quantized to 255 levels with its own scale.
        weight: from `quantize_weight`.
        bias_N: float32 [outputs].

    Returns:
        [tokens, outputs], the dtype of `x`. A token with a value that is not finite has no finite output.

    Raises:
        ValueError: shapes or dtypes do not fit together; or the layer has a single input, for which torch's integer
            product returns uninitialized memory (2.13, on a CPU).
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
        out_TN: torch.Tensor = torch.ops.tessera.int8_linear(
            x_TK, weight_KN, scale_N, weight.outlier_columns_M, weight.outlier_weight_MN, weight.smoothing_K, bias_N
        )
        return out_TN
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
    outlier_columns_M: torch.Tensor,
    outlier_weight_MN: torch.Tensor,
    smoothing_K: torch.Tensor,
    bias_N: torch.Tensor | None,
) -> torch.Tensor:
    return _run(x_TK, Int8Weight(weight_KN, scale_N, outlier_columns_M, outlier_weight_MN, smoothing_K), bias_N)


@_registered.register_fake
def _(x_TK: torch.Tensor, weight_KN: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TK.new_empty(x_TK.shape[0], weight_KN.shape[1])
