"""A mixture-of-experts layer with SwiGLU: the weighted sum of the chosen experts of each token.

Outputs of experts are added in the order in which the experts were chosen. Knows nothing of the router, which is
`moe_routing`.

Shape letters: T tokens, D features, C chosen experts of a token, E experts, F an expert's inner features.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.grouped_gemm import grouped_gemm, tile_for
from tessera_kernels.grouped_gemm.experts_weight import ExpertsWeight, sizes
from tessera_kernels.moe import reference
from tessera_kernels.moe_routing import plan
from tessera_kernels.storage.quantized_weight import FLOATS

__all__ = ["combine", "moe"]


def moe(
    x_TD: torch.Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    experts_TC: torch.Tensor,
    weights_TC: torch.Tensor,
    *,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    clamped: bool = False,
) -> torch.Tensor:
    """Sum over the chosen experts of weight · down(silu(gate(x)) · up(x)).

    Args:
        x_TD: [tokens, features], float16, bfloat16 or float32.
        gate_up: weight [E, 2 · F, D], with the rows of gates first.
        down: weight [E, D, F].
        experts_TC: int32, from `moe_routing.route`; an expert outside [0, E) adds nothing (it is on another device).
        weights_TC: float32, from `moe_routing.route`.
        gate_up_bias: any float dtype, [E, 2 · F].
        down_bias: any float dtype, [E, D].
        clamped: whether gates and ups are clamped as in gpt-oss, as in `grouped_gemm`.

    Returns:
        [T, D], in the dtype of `x`; the same bits in every run. A token with values that are not finite affects no
        other token.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    experts, doubled, features = sizes(gate_up)
    if sizes(down) != (experts, features, doubled // 2):
        raise ValueError(
            f"down must be {(experts, features, doubled // 2)} for gates {sizes(gate_up)}, not {sizes(down)}"
        )
    _check(experts_TC, weights_TC, len(x_TD))
    assignments = experts_TC.numel()
    places = plan(experts_TC, experts, tile_for(assignments, gate_up))
    inner_AF = grouped_gemm(x_TD, gate_up, places, assignments, gate_up_bias, gated=True, clamped=clamped)
    outer_AD = grouped_gemm(inner_AF, down, places, assignments, down_bias)
    return combine(outer_AD, experts_TC, weights_TC, experts)


def combine(outer_AD: torch.Tensor, experts_TC: torch.Tensor, weights_TC: torch.Tensor, experts: int) -> torch.Tensor:
    """Weighted sum of the outputs of each token's experts, in float32 and in the order the experts were chosen.

    Args:
        outer_AD: any float dtype, the output of an expert for each assignment.
        experts_TC: int32; rows of experts outside [0, experts) are not read.
        weights_TC: float32, the weight of each assignment.
        experts: number of experts.

    Returns:
        [T, D], in the dtype of `outer`.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    _check(experts_TC, weights_TC, len(experts_TC))
    if outer_AD.dtype not in FLOATS or outer_AD.ndim != 2 or len(outer_AD) != experts_TC.numel():
        raise ValueError(
            f"rows must be float [{experts_TC.numel()}, features], not {outer_AD.dtype} {tuple(outer_AD.shape)}"
        )
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.tessera.moe_combine(outer_AD, experts_TC, weights_TC, experts)
        return found
    return _combine(outer_AD, experts_TC, weights_TC, experts)


def _check(experts_TC: torch.Tensor, weights_TC: torch.Tensor, tokens: int) -> None:
    if experts_TC.dtype != torch.int32 or experts_TC.ndim != 2 or len(experts_TC) != tokens:
        raise ValueError(f"experts must be int32 [{tokens}, chosen], not {experts_TC.dtype} {tuple(experts_TC.shape)}")
    if weights_TC.dtype != torch.float32 or weights_TC.shape != experts_TC.shape:
        raise ValueError(
            f"weights must be float32 {tuple(experts_TC.shape)}, not {weights_TC.dtype} {tuple(weights_TC.shape)}"
        )


def _combine(outer_AD: torch.Tensor, experts_TC: torch.Tensor, weights_TC: torch.Tensor, experts: int) -> torch.Tensor:
    if not triton_support(outer_AD, experts_TC, weights_TC).ok:
        return reference.combine(outer_AD, experts_TC, weights_TC, experts)
    from tessera_kernels.moe import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    return triton.combine(outer_AD.contiguous(), experts_TC.contiguous(), weights_TC.contiguous(), experts)


@torch.library.custom_op("tessera::moe_combine", mutates_args=())
def _registered(
    outer_AD: torch.Tensor, experts_TC: torch.Tensor, weights_TC: torch.Tensor, experts: int
) -> torch.Tensor:
    return _combine(outer_AD, experts_TC, weights_TC, experts)


@_registered.register_fake
def _(outer_AD: torch.Tensor, experts_TC: torch.Tensor, *_: object) -> torch.Tensor:
    return outer_AD.new_empty(experts_TC.shape[0], outer_AD.shape[1])
