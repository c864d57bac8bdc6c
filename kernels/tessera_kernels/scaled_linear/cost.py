"""What `scaled_linear` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(tokens: int, outputs: int, inputs: int, numbers: torch.dtype, dtype: torch.dtype) -> Cost:
    """Of one product with rounding its inputs: they are read once, and need not be written again. Scales are few."""
    moved = outputs * inputs + 4 * outputs + tokens * (inputs + outputs) * dtype.itemsize
    return Cost(2.0 * tokens * inputs * outputs, moved, "int8" if numbers == torch.int8 else "fp8")


def quantize_cost(tokens: int, inputs: int, dtype: torch.dtype) -> Cost:
    """Of rounding alone."""
    return Cost(0.0, tokens * inputs * (dtype.itemsize + 1), "fp32")
