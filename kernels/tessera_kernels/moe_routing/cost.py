"""Least FLOPs and bytes of `moe_routing`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def route_cost(tokens: int, experts: int, chosen: int, dtype: torch.dtype) -> Cost:
    """Cost of `route`: logits are read, experts and weights written; the few comparisons are not counted as FLOPs."""
    return Cost(0.0, tokens * (experts * dtype.itemsize + chosen * 8), "fp32")


def plan_cost(tokens: int, chosen: int) -> Cost:
    """Cost of `plan`: experts are read and places written."""
    return Cost(0.0, tokens * chosen * 8, "fp32")
