"""A linear layer in eight bits: inputs and weight are int8 or float8 (e4m3), multiplied on matrix units for eight bits.

There is a scale for each token and each output (ZeroQuant, Yao et al. 2022), one for the whole weight, or one for each
128 inputs of a token and each block of 128 · 128 weights (DeepSeek-V3, section 3.3). Inputs are quantized in each call.

Shape letters: T tokens, K inputs, N outputs, J blocks of 128 inputs.
"""

from __future__ import annotations

import torch

from tessera_kernels import chips
from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.scaled_linear import reference
from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.storage.quantized_weight import FLOATS
from tessera_kernels.storage.scaled_weight import ScaledWeight

__all__ = ["quantize_tokens", "scaled_linear", "scaled_support"]


def scaled_linear(
    x_TK: torch.Tensor, weight: ScaledWeight, bias_N: torch.Tensor | None = None, *, batch_invariant: bool = False
) -> torch.Tensor:
    """x · weightᵀ + bias, with x and weight quantized to eight bits.

    Args:
        x_TK: [tokens, inputs], float16, bfloat16 or float32.
        weight: the weight of one layer.
        bias_N: any float dtype, [outputs].
        batch_invariant: whether a row of the result must have the same bits in any batch; int8 always does, because
            its sums are exact.

    Returns:
        [tokens, outputs], in the dtype of `x`. A token with a value that is not finite has no finite result, also with
        scales by block.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    weight.check()
    outputs, inputs = weight.elements_NK.shape[-2:]
    if weight.experts:
        raise ValueError(f"one weight alone, not those of {weight.experts[0]} experts: see grouped_gemm")
    if x_TK.dtype not in FLOATS or x_TK.ndim != 2 or x_TK.shape[1] != inputs:
        raise ValueError(f"inputs must be float [tokens, {inputs}], not {x_TK.dtype} {tuple(x_TK.shape)}")
    if bias_N is not None and (tuple(bias_N.shape) != (outputs,) or bias_N.dtype not in FLOATS):
        raise ValueError(f"the bias must be float [{outputs}], not {bias_N.dtype} {tuple(bias_N.shape)}")
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.tessera.scaled_linear(
            x_TK, weight.elements_NK, weight.scale, weight.input_scale, bias_N, batch_invariant
        )
        return found
    return _run(x_TK, weight, bias_N, batch_invariant)


def quantize_tokens(
    x_TK: torch.Tensor, dtype: torch.dtype, *, blocks: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize tokens, each by its own largest magnitude.

    Args:
        x_TK: [tokens, inputs], any float dtype.
        dtype: int8 or float8_e4m3fn.
        blocks: whether every 128 inputs of a token have a scale, and not the whole token.

    Returns:
        Quantized elements [T, K] and float32 scales [T], or [T, J] with `blocks`. The scale of inputs that are not
        finite is not finite.

    Raises:
        ValueError: another dtype or shape.
    """
    if dtype not in LARGEST or x_TK.dtype not in FLOATS or x_TK.ndim != 2:
        raise ValueError(
            f"float [tokens, inputs] are rounded to {' or '.join(map(str, LARGEST))}, not {x_TK.dtype} "
            f"{tuple(x_TK.shape)} to {dtype}"
        )
    if not scaled_support(dtype, x_TK).ok:
        return reference.quantize_tokens(x_TK, dtype, blocks=blocks)
    from tessera_kernels.scaled_linear import quantize  # noqa: PLC0415 - nothing on a CPU imports Triton

    return quantize.quantize_tokens(x_TK if x_TK.stride(1) == 1 else x_TK.contiguous(), dtype, blocks=blocks)


def scaled_support(dtype: torch.dtype, *tensors: torch.Tensor | None) -> Support:
    """Whether Triton supports products in `dtype` on the device of these tensors; the first must not be None."""
    found = triton_support(*tensors)
    first = next(tensor for tensor in tensors if tensor is not None)
    if found.ok and dtype == torch.float8_e4m3fn and not chips.has_float8(first.device):
        return unsupported("this chip has no float8; weight_only_linear multiplies such weights in 16 bits")
    return found


def _run(x_TK: torch.Tensor, weight: ScaledWeight, bias_N: torch.Tensor | None, batch_invariant: bool) -> torch.Tensor:
    if not scaled_support(weight.elements_NK.dtype, x_TK, *weight.tensors, bias_N).ok:
        return reference.scaled_linear(x_TK, weight, bias_N)
    from tessera_kernels.scaled_linear import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    bias = None if bias_N is None else bias_N.contiguous()
    inputs = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
    return triton.scaled_linear(inputs, weight, bias, invariant=batch_invariant)


@torch.library.custom_op("tessera::scaled_linear", mutates_args=())
def _registered(
    x_TK: torch.Tensor,
    elements_NK: torch.Tensor,
    scale: torch.Tensor,
    input_scale: torch.Tensor | None,
    bias_N: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    return _run(x_TK, ScaledWeight(elements_NK, scale, input_scale), bias_N, batch_invariant)


@_registered.register_fake
def _(x_TK: torch.Tensor, elements_NK: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TK.new_empty(x_TK.shape[0], elements_NK.shape[0])
