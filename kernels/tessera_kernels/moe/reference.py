"""`combine` in plain torch: the weighted sum of the outputs of experts."""

from __future__ import annotations

import torch


def combine(outer_AD: torch.Tensor, experts_TC: torch.Tensor, weights_TC: torch.Tensor, experts: int) -> torch.Tensor:
    """Reference of `tessera_kernels.moe.combine`."""
    rows_TCD = outer_AD.float().reshape(*experts_TC.shape, outer_AD.shape[1])
    here_TC = (experts_TC >= 0) & (experts_TC < experts)
    total_TD = rows_TCD.new_zeros(rows_TCD.shape[0], rows_TCD.shape[2])
    for choice in range(experts_TC.shape[1]):
        part_TD = rows_TCD[:, choice] * weights_TC[:, choice, None]
        total_TD += torch.where(here_TC[:, choice, None], part_TD, 0.0)
    return total_TD.to(outer_AD.dtype)
