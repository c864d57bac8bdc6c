"""Grouped GEMM: multiplies tokens by the weights of the experts that they were routed to, in one launch.

Weights have any scheme of `weight_only_linear` or `scaled_linear`, with a leading dimension for experts. With `gated`
the epilogue applies the activation, so gates and ups are never written. Knows nothing of how tokens were routed.

Shape letters: R rows of inputs, K inputs, A assignments, E experts, N outputs (half of the weight's if gated).
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.grouped_gemm import reference
from tessera_kernels.grouped_gemm.experts_weight import ExpertsWeight, sizes
from tessera_kernels.moe_routing.routing import RoutingPlan
from tessera_kernels.scaled_linear import scaled_support
from tessera_kernels.storage.quantized_weight import FLOATS, NIBBLES, Format, QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight

__all__ = ["ExpertsWeight", "grouped_gemm", "tile_for"]


def tile_for(assignments: int, weight: ExpertsWeight) -> int:
    """Places of a tile for `moe_routing.plan`: the average number of assignments of an expert, so that few stay empty.

    A power of two from 16 to 128, or to 64 if registers are needed for more than the accumulator: to expand elements of
    four bits, or to scale blocks.
    """
    average = -(-assignments // weight.experts[0])
    crowded = weight.blocked if isinstance(weight, ScaledWeight) else weight.format in NIBBLES
    most = 64 if crowded else 128
    return min(max(16, 1 << (average - 1).bit_length()), most)


def grouped_gemm(
    x_RK: torch.Tensor,
    weight: ExpertsWeight,
    plan: RoutingPlan,
    assignments: int,
    bias_EN: torch.Tensor | None = None,
    *,
    gated: bool = False,
    clamped: bool = False,
) -> torch.Tensor:
    """Row a of the result is input row a // (A / R) times the weight of the expert of assignment a.

    Args:
        x_RK: float16, bfloat16 or float32; one row for each token, or one for each assignment.
        weight: the weights of all experts; with `gated`, rows of gates first, then as many rows of ups.
        plan: order of assignments, from `moe_routing.plan`.
        assignments: A, a multiple of R.
        bias_EN: any float dtype, [E, outputs of the weight].
        gated: whether the result is silu(gate) · up (SwiGLU).
        clamped: whether gates and ups are clamped as in gpt-oss (`reference.swiglu`).

    Returns:
        [A, N], in the dtype of `x`. Rows of assignments that have no place in the plan are undefined.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    _check(x_RK, weight, assignments, bias_EN, gated)
    if torch.compiler.is_compiling():
        elements, scale, third, fourth, form, inputs, group = _flat(weight)
        found: torch.Tensor = torch.ops.tessera.grouped_gemm(
            x_RK, elements, scale, third, fourth, bias_EN, plan.rows_P, plan.experts_B, form, inputs, group,
            plan.tile, assignments, gated, clamped,
        )  # fmt: skip
        return found
    return _run(x_RK, weight, plan, assignments, bias_EN, gated, clamped)


def _check(
    x_RK: torch.Tensor, weight: ExpertsWeight, assignments: int, bias_EN: torch.Tensor | None, gated: bool
) -> None:
    weight.check()
    if len(weight.experts) != 1:
        raise ValueError("the weight must have one dimension for experts; weight_only_linear takes one without")
    experts, outputs, inputs = sizes(weight)
    if x_RK.dtype not in FLOATS or x_RK.ndim != 2 or x_RK.shape[1] != inputs:
        raise ValueError(f"inputs must be float [rows, {inputs}], not {x_RK.dtype} {tuple(x_RK.shape)}")
    if isinstance(weight, QuantizedWeight) and weight.format == "dense" and weight.elements.dtype != x_RK.dtype:
        raise ValueError(f"a dense weight must have the inputs' {x_RK.dtype}, not {weight.elements.dtype}")
    if assignments % max(len(x_RK), 1) or (assignments and not len(x_RK)):
        raise ValueError(f"{assignments} assignments are no multiple of {len(x_RK)} rows")
    if gated and outputs % 2:
        raise ValueError(f"gated weights have gates and as many ups, not {outputs} outputs")
    if bias_EN is not None and (tuple(bias_EN.shape) != (experts, outputs) or bias_EN.dtype not in FLOATS):
        raise ValueError(f"the bias must be float {(experts, outputs)}, not {bias_EN.dtype} {tuple(bias_EN.shape)}")


def _run(
    x_RK: torch.Tensor,
    weight: ExpertsWeight,
    plan: RoutingPlan,
    assignments: int,
    bias_EN: torch.Tensor | None,
    gated: bool,
    clamped: bool,
) -> torch.Tensor:
    tensors = x_RK, *weight.tensors, plan.rows_P, bias_EN
    can = (
        scaled_support(weight.elements_NK.dtype, *tensors)
        if isinstance(weight, ScaledWeight)
        else triton_support(*tensors)
    )
    if not can.ok:
        return reference.grouped_gemm(x_RK, weight, plan, assignments, bias_EN, gated, clamped)
    from tessera_kernels.grouped_gemm import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    inputs = x_RK if x_RK.stride(1) == 1 else x_RK.contiguous()
    bias = None if bias_EN is None else bias_EN.contiguous()
    return triton.grouped_gemm(inputs, weight, plan, assignments, bias, gated, clamped)


def _flat(
    weight: ExpertsWeight,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, str, int, int]:
    if isinstance(weight, ScaledWeight):
        return weight.elements_NK, weight.scale, weight.input_scale, None, "scaled", 0, 0
    parts = weight.elements, weight.scale_GN, weight.zero_GN, weight.tensor_scale
    return *parts, weight.format, weight.inputs, weight.group


@torch.library.custom_op("tessera::grouped_gemm", mutates_args=())
def _registered(
    x_RK: torch.Tensor,
    elements: torch.Tensor,
    scale: torch.Tensor | None,
    third: torch.Tensor | None,
    fourth: torch.Tensor | None,
    bias_EN: torch.Tensor | None,
    rows_P: torch.Tensor,
    experts_B: torch.Tensor,
    kind: str,
    inputs: int,
    group: int,
    tile: int,
    assignments: int,
    gated: bool,
    clamped: bool,
) -> torch.Tensor:
    weight: ExpertsWeight
    if kind == "scaled":
        assert scale is not None
        weight = ScaledWeight(elements, scale, third)
    else:
        form: Format = kind  # type: ignore[assignment]
        weight = QuantizedWeight(form, inputs, group, elements, scale, third, fourth)
    return _run(x_RK, weight, RoutingPlan(rows_P, experts_B, tile), assignments, bias_EN, gated, clamped)


@_registered.register_fake
def _(x_RK: torch.Tensor, elements: torch.Tensor, *rest: object) -> torch.Tensor:
    *_, assignments, gated, _clamped = rest
    assert isinstance(assignments, int | torch.SymInt)
    return x_RK.new_empty(assignments, elements.shape[-2] // (2 if gated else 1))
