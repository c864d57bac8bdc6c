"""Launches `grouped_gemm` on a GPU: kernels of the linear ops, whose tiles take rows and experts from the plan."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from tessera_kernels import chips, tuning
from tessera_kernels.grouped_gemm.experts_weight import ExpertsWeight
from tessera_kernels.moe_routing.routing import RoutingPlan
from tessera_kernels.scaled_linear.quantize import quantize_tokens
from tessera_kernels.scaled_linear.triton import scaled_kernel
from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.scaled_weight import BLOCK, ScaledWeight
from tessera_kernels.weight_only_linear.triton import arguments, weight_only_kernel


def bucket(tile: int, outputs: int, inputs: int, *, gated: bool) -> str:
    """Name of the bucket of shapes in tuned files; the plan's tile stands for the tokens of an expert."""
    sizes = f"N{triton.next_power_of_2(outputs)} K{triton.next_power_of_2(inputs)}"
    return f"T{tile} {sizes}{' gated' if gated else ''}"


def config(
    weight: ExpertsWeight, plan: RoutingPlan, dtype: torch.dtype, device: torch.device, *, gated: bool
) -> dict[str, int]:
    """The launch configuration, without the tile of tokens, which the plan sets."""
    if isinstance(weight, ScaledWeight):
        (outputs, inputs), kind = weight.elements_NK.shape[-2:], f"scaled {weight.elements_NK.dtype}"
        kind += " blocks" if weight.blocked else ""
    else:
        outputs, inputs, kind = weight.outputs, weight.inputs, f"{weight.format} {dtype}"
    name = bucket(plan.tile, outputs, inputs, gated=gated)
    tuned = tuning.lookup("grouped_gemm", tuning.device_here(), kind.replace("torch.", ""), name)
    if tuned is not None:
        return tuned
    eight = isinstance(weight, ScaledWeight)
    blocked = isinstance(weight, ScaledWeight) and weight.blocked
    return heuristic(plan.tile, chips.chip_of(device), eight=eight, blocked=blocked, gated=gated)


def heuristic(tile: int, chip: chips.Chip, *, eight: bool, blocked: bool, gated: bool) -> dict[str, int]:
    """Configuration without a tuned entry.

    Narrow tiles multiply exact elements and scale accumulators (AFTER). Gated tiles have two accumulators, so they are
    half as wide.
    """
    wide = tile > 64 and not gated and not blocked
    # Before Hopper a warp also holds its inputs in registers; after it, both accumulators of blocks are moved there.
    crowded = tile > 64 or (tile == 64 and (0 < chip.capability < 90 or (blocked and chip.capability > 90)))
    shape = {"B_N": 128 if wide else 64, "SPLITS": 1, "num_warps": 8 if crowded else 4}
    roomy = chip.shared > 2**16
    if eight:
        return {**shape, "B_K": BLOCK, "num_stages": 3 if roomy else 2}
    return {**shape, "AFTER": int(tile <= 32), "num_stages": (3 if tile > 32 else 4) if roomy else 2}


def grouped_gemm(
    x_RK: torch.Tensor,
    weight: ExpertsWeight,
    plan: RoutingPlan,
    assignments: int,
    bias_EN: torch.Tensor | None,
    gated: bool,
    clamped: bool = False,
    *,
    out: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.grouped_gemm.grouped_gemm`; inputs of a row, `bias` and `out` are contiguous."""
    elements = weight.elements_NK if isinstance(weight, ScaledWeight) else weight.elements
    outputs = elements.shape[-2] // (2 if gated else 1)
    out = x_RK.new_empty(assignments, outputs) if out is None else out
    if not out.numel():
        return out
    how = dict(configuration or config(weight, plan, x_RK.dtype, x_RK.device, gated=gated))
    places = len(plan.rows_P)
    grid = (places // plan.tile * triton.cdiv(outputs, how["B_N"]), 1)
    constants = {
        "GROUPED": True,
        "DIVISOR": assignments // len(x_RK),
        "GATED": (2 if clamped else 1) if gated else 0,
        "INTERPRETED": triton.knobs.runtime.interpret,
        "B_T": plan.tile,
    }
    if isinstance(weight, QuantizedWeight):
        weight_only_kernel[grid](
            x_RK, p_out=out, p_rows=plan.rows_P, p_experts=plan.experts_B, places=places, tokens=assignments,
            outputs=outputs, x_stride=x_RK.stride(0), out_stride=outputs,
            **arguments(weight, bias_EN, x_RK.dtype), **constants, **how,
        )  # fmt: skip
        return out
    inputs = x_RK.shape[1]
    quantized, scales = quantize_tokens(x_RK, elements.dtype, blocks=weight.blocked, given=weight.input_scale)
    scaled_kernel[grid](
        quantized, elements, scales, weight.scale, out if bias_EN is None else bias_EN, out, out, out, out,
        plan.rows_P, plan.experts_B, places, assignments, outputs, inputs, 0, 0, outputs,
        BLOCKED=weight.blocked, BIAS=bias_EN is not None, ALIGNED=not gated or outputs % how["B_N"] == 0,
        COLUMNS=False, EVEN=inputs % how["B_K"] == 0, **constants, **how,
    )  # fmt: skip
    return out
