"""Routes tokens to experts: which experts a token goes to, with which weights, and the order of grouped products.

Softmax routing as in Mixtral and Qwen3; sigmoid routing with a correction bias and groups of experts as in DeepSeek-V3
(section 2.1.2), whose bias affects the choice and not the weights; the best expert of a group as in DeepSeek-V2. Knows
nothing of the weights of experts.

Shape letters: T tokens, E experts, C chosen experts of a token, A = T · C assignments (token and choice), P places.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.moe_routing import reference
from tessera_kernels.moe_routing.routing import RoutingPlan, RoutingRule
from tessera_kernels.storage.quantized_weight import FLOATS

__all__ = ["MOST_EXPERTS", "RoutingPlan", "RoutingRule", "plan", "route"]

MOST_EXPERTS = 1024
"""Most experts of a layer: a program holds the scores of all of them in registers."""


def route(
    logits_TE: torch.Tensor, rule: RoutingRule, bias_E: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts for each token.

    Args:
        logits_TE: [tokens, experts], any float dtype.
        rule: how the model chooses.
        bias_E: added to the scores for the choice, and not to the weights.

    Returns:
        Weights, float32 [T, C], and experts, int32 [T, C], the best first; of equal experts the one with the lower
        index. A token with a NaN among its logits has NaN weights.

    Raises:
        ValueError: shapes or the rule do not fit together.
    """
    experts = logits_TE.shape[-1]
    if logits_TE.ndim != 2 or logits_TE.dtype not in FLOATS or not 1 <= experts <= MOST_EXPERTS:
        raise ValueError(
            f"logits must be float [tokens, up to {MOST_EXPERTS} experts], not {logits_TE.dtype} "
            f"{tuple(logits_TE.shape)}"
        )
    if rule.scoring not in {"softmax", "sigmoid"}:
        raise ValueError(f"scores are made by softmax or sigmoid, not by {rule.scoring}")
    if rule.groups < 1 or experts % rule.groups or not 1 <= rule.chosen_groups <= rule.groups:
        raise ValueError(
            f"{experts} experts cannot be in {rule.groups} groups of which {rule.chosen_groups} are chosen"
        )
    if not 1 <= rule.chosen <= experts // rule.groups * rule.chosen_groups:
        raise ValueError(
            f"{rule.chosen} experts cannot be chosen of {rule.chosen_groups} groups of {experts // rule.groups}"
        )
    if rule.groups > 1 and bias_E is not None and experts // rule.groups < 2:
        raise ValueError("a group is judged by its two best experts, and has one alone")
    if bias_E is not None and (tuple(bias_E.shape) != (experts,) or bias_E.dtype not in FLOATS):
        raise ValueError(f"the bias must be float [{experts}], not {bias_E.dtype} {tuple(bias_E.shape)}")
    if torch.compiler.is_compiling():
        found: tuple[torch.Tensor, torch.Tensor] = torch.ops.tessera.moe_route(
            logits_TE, bias_E, rule.chosen, rule.scoring, rule.groups, rule.chosen_groups, rule.renormalize, rule.factor
        )
        return found
    return _route(logits_TE, rule, bias_E)


def _route(
    logits_TE: torch.Tensor, rule: RoutingRule, bias_E: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if not triton_support(logits_TE, bias_E).ok:
        return reference.route(logits_TE, rule, bias_E)
    from tessera_kernels.moe_routing import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    return triton.route(logits_TE.contiguous(), rule, bias_E)


def plan(experts_TC: torch.Tensor, experts: int, tile: int) -> RoutingPlan:
    """Sort assignments by expert; the order is stable and the same in every run.

    Args:
        experts_TC: int32, from `route`; assignments to experts outside [0, experts) get no place.
        experts: number of experts.
        tile: places of a tile, a power of two of at least 16.

    Raises:
        ValueError: `experts_TC` has another dtype or shape, or `tile` or `experts` is not allowed.
    """
    if experts_TC.dtype != torch.int32 or experts_TC.ndim != 2:
        raise ValueError(f"experts must be int32 [tokens, chosen], not {experts_TC.dtype} {tuple(experts_TC.shape)}")
    if tile < 16 or tile & (tile - 1):
        raise ValueError(f"a tile has 16, 32, 64, … places, not {tile}")
    if not 1 <= experts <= MOST_EXPERTS:
        raise ValueError(f"there must be 1 to {MOST_EXPERTS} experts, not {experts}")
    if torch.compiler.is_compiling():
        rows_P, experts_B = torch.ops.tessera.moe_plan(experts_TC, experts, tile)
        return RoutingPlan(rows_P, experts_B, tile)
    return _plan(experts_TC, experts, tile)


def _plan(experts_TC: torch.Tensor, experts: int, tile: int) -> RoutingPlan:
    if not triton_support(experts_TC).ok:
        return RoutingPlan(*reference.plan(experts_TC, experts, tile), tile)
    from tessera_kernels.moe_routing import triton  # noqa: PLC0415 - nothing on a CPU imports Triton

    return RoutingPlan(*triton.plan(experts_TC.contiguous(), experts, tile), tile)


@torch.library.custom_op("tessera::moe_route", mutates_args=())
def _route_registered(
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None,
    chosen: int,
    scoring: str,
    groups: int,
    chosen_groups: int,
    renormalize: bool,
    factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    rule = RoutingRule(chosen, scoring, groups, chosen_groups, renormalize, factor)  # type: ignore[arg-type]
    return _route(logits_TE, rule, bias_E)


@_route_registered.register_fake
def _(
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor | None,  # noqa: ARG001 - names are those of the op
    chosen: int,
    *_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = logits_TE.shape[0], chosen
    return logits_TE.new_empty(shape, dtype=torch.float32), logits_TE.new_empty(shape, dtype=torch.int32)


@torch.library.custom_op("tessera::moe_plan", mutates_args=())
def _plan_registered(experts_TC: torch.Tensor, experts: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = _plan(experts_TC, experts, tile)
    return found.rows_P, found.experts_B


@_plan_registered.register_fake
def _(experts_TC: torch.Tensor, experts: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    tiles = reference.tiles_for(experts_TC.numel(), experts, tile)
    return experts_TC.new_empty(tiles * tile), experts_TC.new_empty(tiles)
