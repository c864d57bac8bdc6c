"""The least work of `int8_linear`, for the roofline: that of `scaled_linear`. Outlier columns are not counted."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.scaled_linear.cost import cost as scaled_cost


def cost(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> Cost:
    """FLOPs and bytes of quantizing the inputs and of one product."""
    return scaled_cost(tokens, outputs, inputs, torch.int8, dtype)
