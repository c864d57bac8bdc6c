"""A linear layer with a weight-only scheme: int8, float8, int4, MXFP4, NVFP4 or dense, with inputs of 16 bits.

Formats and their sources are in `tessera_kernels.storage.quantized_weight`. The chip needs no units for them: elements
of the weight are expanded exactly in registers and multiplied on units for 16 bits.

Shape letters: T tokens, K inputs, N outputs.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.storage.quantized_weight import FLOATS, Format, QuantizedWeight
from tessera_kernels.weight_only_linear import reference
from tessera_kernels.weight_only_linear.cpu import PackedInt4, pack, packed_int4_linear, packs

__all__ = ["PackedInt4", "pack", "packed_int4_linear", "packs", "weight_only_linear"]


def weight_only_linear(
    x_TK: torch.Tensor,
    weight: QuantizedWeight,
    bias_N: torch.Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """x · weightᵀ + bias.

    Args:
        x_TK: [tokens, inputs], float16, bfloat16 or float32.
        weight: the weight of one layer.
        bias_N: any float dtype, [outputs].
        batch_invariant: whether a row of the result must have the same bits in any batch. This is slower with many
            tokens, because one order of summation serves every number of tokens.

    Returns:
        [tokens, outputs], in the dtype of `x`. A row with values that are not finite affects no other row.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    _check(x_TK, weight, bias_N)
    if torch.compiler.is_compiling():
        parts = weight.elements, weight.scale_GN, weight.zero_GN, weight.tensor_scale
        found: torch.Tensor = torch.ops.tessera.weight_only_linear(
            x_TK, *parts, bias_N, weight.format, weight.inputs, weight.group, batch_invariant
        )
        return found
    return _run(x_TK, weight, bias_N, batch_invariant)


def _check(x_TK: torch.Tensor, weight: QuantizedWeight, bias_N: torch.Tensor | None) -> None:
    weight.check()
    if weight.experts:
        raise ValueError(f"one weight alone, not those of {weight.experts[0]} experts: see grouped_gemm")
    if x_TK.dtype not in FLOATS or x_TK.ndim != 2 or x_TK.shape[1] != weight.inputs:
        raise ValueError(f"inputs must be float [tokens, {weight.inputs}], not {x_TK.dtype} {tuple(x_TK.shape)}")
    if weight.format == "dense" and weight.elements.dtype != x_TK.dtype:
        raise ValueError(f"a dense weight must have the inputs' {x_TK.dtype}, not {weight.elements.dtype}")
    if bias_N is not None and (tuple(bias_N.shape) != (weight.outputs,) or bias_N.dtype not in FLOATS):
        raise ValueError(f"the bias must be float [{weight.outputs}], not {bias_N.dtype} {tuple(bias_N.shape)}")


def _run(
    x_TK: torch.Tensor, weight: QuantizedWeight, bias_N: torch.Tensor | None, batch_invariant: bool
) -> torch.Tensor:
    if not triton_support(x_TK, *weight.tensors, bias_N).ok:
        return reference.weight_only_linear(x_TK, weight, bias_N)
    from tessera_kernels.weight_only_linear import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    inputs = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
    bias = None if bias_N is None else bias_N.contiguous()
    return triton.weight_only_linear(inputs, weight, bias, invariant=batch_invariant)


@torch.library.custom_op("tessera::weight_only_linear", mutates_args=())
def _registered(
    x_TK: torch.Tensor,
    elements: torch.Tensor,
    scale_GN: torch.Tensor | None,
    zero_GN: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    bias_N: torch.Tensor | None,
    kind: str,
    inputs: int,
    group: int,
    batch_invariant: bool,
) -> torch.Tensor:
    form: Format = kind  # type: ignore[assignment]
    weight = QuantizedWeight(form, inputs, group, elements, scale_GN, zero_GN, tensor_scale)
    return _run(x_TK, weight, bias_N, batch_invariant)


@_registered.register_fake
def _(x_TK: torch.Tensor, elements: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TK.new_empty(x_TK.shape[0], elements.shape[-2])
