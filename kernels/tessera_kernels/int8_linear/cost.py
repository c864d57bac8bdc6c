"""What `int8_linear` cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tessera_kernels.roofline import Cost

if TYPE_CHECKING:
    from tessera_kernels.int8_linear import Int8Weight


def cost(tokens: int, weight: Int8Weight, dtype: torch.dtype) -> Cost:
    """Of one product with rounding its inputs; columns in float are few, and counted as if they were not."""
    inputs, outputs = weight.weight_KN.shape
    moved = weight.nbytes + tokens * (inputs + outputs) * dtype.itemsize
    return Cost(2.0 * tokens * inputs * outputs, moved, "int8")
