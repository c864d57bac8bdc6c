"""What `moe_routing` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def route_cost(tokens: int, experts: int, chosen: int, dtype: torch.dtype) -> Cost:
    """Reading logits and writing choices; the few comparisons are not counted as FLOPs."""
    return Cost(0.0, tokens * (experts * dtype.itemsize + chosen * 8), "fp32")


def plan_cost(tokens: int, chosen: int) -> Cost:
    """Reading choices and writing places."""
    return Cost(0.0, tokens * chosen * 8, "fp32")
