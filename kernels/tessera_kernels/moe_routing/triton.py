# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Routing and sorting on a GPU: a program for each token, and one for each expert, without waiting for the host.

Sorting takes two launches: each expert counts its assignments, then each writes them behind those of the experts before
it. There are no atomics, so places are the same in every run.

Shape letters: T tokens, E experts, C chosen, A assignments, P places, G groups.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.moe_routing.reference import tiles_for
from tessera_kernels.moe_routing.routing import RoutingRule

ASSIGNMENTS_PER_STEP = 1024
"""Assignments that a program of `count_kernel` or `place_kernel` reads in one step."""


@triton.jit(do_not_specialize=["factor"])
def route_kernel(
    p_logits,
    p_bias,
    p_weights,
    p_experts,
    experts,
    factor,
    SIGMOID: tl.constexpr,
    BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr,
    CHOSEN: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    B_E: tl.constexpr,
    B_G: tl.constexpr,
    B_C: tl.constexpr,
):
    """Choose the experts of one token and compute their weights."""
    i_token = tl.program_id(0).to(tl.int64)
    o_e = tl.arange(0, B_E)
    there = o_e < experts
    b_logit = tl.load(p_logits + i_token * experts + o_e, mask=there, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        b_score = 1.0 / (1.0 + tl.exp(-b_logit))
    else:
        b_raised = tl.exp(b_logit - tl.max(b_logit, axis=0))
        b_score = b_raised / tl.sum(b_raised, axis=0)
    has_nan = tl.sum(tl.where(there & (b_score != b_score), 1, 0), axis=0) > 0  # noqa: PLR0124
    b_choosing = b_score
    if BIAS:
        b_choosing += tl.load(p_bias + o_e, mask=there, other=0.0).to(tl.float32)
    b_choosing = tl.where(there & (b_choosing == b_choosing), b_choosing, float("-inf"))  # noqa: PLR0124
    if GROUPS > 1:
        o_g = tl.arange(0, B_G)
        i_group = o_e // (experts // GROUPS)
        b_own = tl.where((i_group[None, :] == o_g[:, None]) & there[None, :], b_choosing[None, :], float("-inf"))
        b_worth = tl.max(b_own, axis=1)
        if BIAS:
            o_first = tl.min(tl.where(b_own == b_worth[:, None], o_e[None, :], 1 << 30), axis=1)
            b_worth += tl.max(tl.where(o_e[None, :] == o_first[:, None], float("-inf"), b_own), axis=1)
        b_worth = tl.where(o_g < GROUPS, b_worth, float("-inf"))
        b_allowed = tl.zeros((B_E,), dtype=tl.int32)
        b_left = tl.where(o_g < GROUPS, 1, 0)
        for _ in tl.static_range(CHOSEN_GROUPS):
            b_open = tl.where(b_left > 0, b_worth, float("-inf"))
            i_best = tl.min(tl.where((b_open == tl.max(b_open, axis=0)) & (b_left > 0), o_g, 1 << 30), axis=0)
            b_left = tl.where(o_g == i_best, 0, b_left)
            b_allowed = tl.where(i_group == i_best, 1, b_allowed)
        b_choosing = tl.where(b_allowed > 0, b_choosing, float("-inf"))
    o_c = tl.arange(0, B_C)
    b_weights = tl.zeros((B_C,), dtype=tl.float32)
    b_experts = tl.zeros((B_C,), dtype=tl.int32)
    b_free = tl.where(there, 1, 0)
    for i_choice in tl.static_range(CHOSEN):
        b_open = tl.where(b_free > 0, b_choosing, float("-inf"))
        i_best = tl.min(tl.where((b_open == tl.max(b_open, axis=0)) & (b_free > 0), o_e, 1 << 30), axis=0)
        b_free = tl.where(o_e == i_best, 0, b_free)
        weight = tl.sum(tl.where(o_e == i_best, b_score, 0.0), axis=0)
        b_weights = tl.where(o_c == i_choice, weight, b_weights)
        b_experts = tl.where(o_c == i_choice, i_best, b_experts)
    if RENORMALIZE:
        b_weights /= tl.sum(b_weights, axis=0)
    b_weights = tl.where(has_nan, float("nan"), b_weights * factor)
    o_out = i_token * CHOSEN + o_c
    tl.store(p_weights + o_out, b_weights, mask=o_c < CHOSEN)
    tl.store(p_experts + o_out, b_experts, mask=o_c < CHOSEN)


@triton.jit(do_not_specialize=["assignments"])
def count_kernel(p_experts, p_counts, assignments, B_A: tl.constexpr):
    """Count the assignments of one expert."""
    i_expert = tl.program_id(0)
    b_count = tl.zeros((B_A,), dtype=tl.int32)
    for o_first in range(0, assignments, B_A):
        o_a = o_first + tl.arange(0, B_A)
        b_count += (tl.load(p_experts + o_a, mask=o_a < assignments, other=-1) == i_expert).to(tl.int32)
    tl.store(p_counts + i_expert, tl.sum(b_count, axis=0))


@triton.jit(do_not_specialize=["assignments", "tiles"])
def place_kernel(
    p_experts,
    p_counts,
    p_rows,
    p_owners,
    assignments,
    experts,
    tiles,
    TILE: tl.constexpr,
    B_E: tl.constexpr,
    B_A: tl.constexpr,
):
    """Write the assignments of one expert behind those of the experts before it; the last program writes padding."""
    i_expert = tl.program_id(0)
    o_e = tl.arange(0, B_E)
    b_counts = tl.load(p_counts + o_e, mask=(o_e < experts) & (o_e <= i_expert), other=0)
    b_tiles = (b_counts + (TILE - 1)) // TILE
    i_tile = tl.sum(tl.where(o_e < i_expert, b_tiles, 0), axis=0)
    used = tl.sum(tl.where(o_e == i_expert, b_tiles, 0), axis=0)
    owner = i_expert
    if i_expert == experts:
        used = tiles - i_tile
        owner = -1
    for i_own in range(used):
        tl.store(p_owners + i_tile + i_own, owner)
    written = i_tile * TILE
    end = written + used * TILE
    if i_expert < experts:
        for o_first in range(0, assignments, B_A):
            o_a = o_first + tl.arange(0, B_A)
            b_mine = (tl.load(p_experts + o_a, mask=o_a < assignments, other=-1) == i_expert).to(tl.int32)
            o_place = written + tl.cumsum(b_mine, axis=0) - 1
            tl.store(p_rows + o_place, o_a, mask=b_mine > 0)
            written += tl.sum(b_mine, axis=0)
    for o_first in range(written, end, B_A):
        o_place = o_first + tl.arange(0, B_A)
        tl.store(p_rows + o_place, tl.zeros((B_A,), dtype=tl.int32) + assignments, mask=o_place < end)


def route(
    logits_TE: torch.Tensor,
    rule: RoutingRule,
    bias_E: torch.Tensor | None,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `tessera_kernels.moe_routing.route`; logits are contiguous, `out` are weights and experts to write to."""
    tokens, experts = logits_TE.shape
    if out is None:
        shape = tokens, rule.chosen
        out = logits_TE.new_empty(shape, dtype=torch.float32), logits_TE.new_empty(shape, dtype=torch.int32)
    if tokens:
        route_kernel[(tokens,)](
            logits_TE,
            logits_TE if bias_E is None else bias_E,
            *out,
            experts,
            rule.factor,
            SIGMOID=rule.scoring == "sigmoid",
            BIAS=bias_E is not None,
            GROUPS=rule.groups,
            CHOSEN_GROUPS=rule.chosen_groups,
            CHOSEN=rule.chosen,
            RENORMALIZE=rule.renormalize,
            B_E=triton.next_power_of_2(experts),
            B_G=triton.next_power_of_2(rule.groups),
            B_C=triton.next_power_of_2(rule.chosen),
            num_warps=1 if experts <= 256 and rule.groups == 1 else 4,
        )
    return out


def plan(
    experts_TC: torch.Tensor, experts: int, tile: int, *, out: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of places and experts of tiles; see `tessera_kernels.moe_routing.plan`. `experts_TC` is contiguous."""
    assignments = experts_TC.numel()
    tiles = tiles_for(assignments, experts, tile)
    if out is None:
        out = experts_TC.new_empty(tiles * tile), experts_TC.new_empty(tiles)
    if assignments:
        counts_E = experts_TC.new_empty(experts)
        count_kernel[(experts,)](experts_TC, counts_E, assignments, B_A=ASSIGNMENTS_PER_STEP, num_warps=4)
        place_kernel[(experts + 1,)](
            experts_TC, counts_E, *out, assignments, experts, tiles,
            TILE=tile, B_E=triton.next_power_of_2(experts), B_A=ASSIGNMENTS_PER_STEP, num_warps=4,
        )  # fmt: skip
    return out
