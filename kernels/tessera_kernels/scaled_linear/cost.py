"""What `scaled_linear` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.scaled_weight import ScaledWeight


def cost(tokens: int, weight: ScaledWeight, dtype: torch.dtype) -> Cost:
    """Of one product with rounding its inputs: they are read once, and need not be written again."""
    outputs, inputs = weight.numbers_NK.shape[-2:]
    moved = weight.nbytes + tokens * (inputs + outputs) * dtype.itemsize
    unit = "int8" if weight.numbers_NK.dtype == torch.int8 else "fp8"
    return Cost(2.0 * tokens * inputs * outputs, moved, unit)
