"""`moe_routing` in plain torch."""

from __future__ import annotations

import torch

from tessera_kernels.moe_routing.routing import RoutingRule


def route(logits_TE: torch.Tensor, rule: RoutingRule, bias_E: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `tessera_kernels.moe_routing.route`."""
    logits = logits_TE.float()
    scores_TE = logits.softmax(-1) if rule.scoring == "softmax" else logits.sigmoid()
    choosing_TE = scores_TE if bias_E is None else scores_TE + bias_E.float()
    if rule.groups > 1:
        grouped = choosing_TE.reshape(len(choosing_TE), rule.groups, choosing_TE.shape[1] // rule.groups)
        worth_TG = grouped.amax(-1) if bias_E is None else grouped.topk(2, dim=-1).values.sum(-1)
        # A stable sort chooses the lower index of equals; topk may choose any.
        best_TG = worth_TG.sort(dim=-1, descending=True, stable=True).indices[:, : rule.chosen_groups]
        allowed_TG = torch.zeros_like(worth_TG, dtype=torch.bool).scatter_(1, best_TG, True)
        choosing_TE = grouped.masked_fill(~allowed_TG[..., None], -torch.inf).flatten(-2)
    experts_TC = choosing_TE.sort(dim=-1, descending=True, stable=True).indices[:, : rule.chosen]
    weights_TC = scores_TE.gather(1, experts_TC)
    if rule.renormalize:
        weights_TC = weights_TC / weights_TC.sum(-1, keepdim=True)
    return weights_TC * rule.factor, experts_TC.to(torch.int32)


def tiles_for(assignments: int, experts: int, tile: int) -> int:
    """Tiles that are enough for any routing: all full tiles, and a partial one for each expert with assignments."""
    return assignments // tile + min(experts, assignments)


def plan(experts_TC: torch.Tensor, experts: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of places and experts of tiles; see `tessera_kernels.moe_routing.plan`."""
    flat = experts_TC.flatten()
    tiles = tiles_for(len(flat), experts, tile)
    rows = torch.full((tiles * tile,), len(flat), dtype=torch.int32)
    owners = torch.full((tiles,), -1, dtype=torch.int32)
    place = 0
    for expert in range(experts):
        own = (flat == expert).nonzero().flatten().to(torch.int32).cpu()
        rows[place : place + len(own)] = own
        used = -(-len(own) // tile)
        owners[place // tile : place // tile + used] = expert
        place += used * tile
    return rows.to(flat.device), owners.to(flat.device)
