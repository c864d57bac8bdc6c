"""What `int8_linear` cannot do without: what `scaled_linear` cannot; columns in float are few and not counted."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.scaled_linear.cost import cost as scaled_cost


def cost(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> Cost:
    """Of one product with rounding its inputs."""
    return scaled_cost(tokens, outputs, inputs, torch.int8, dtype)
