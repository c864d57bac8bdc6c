"""What `grouped_gemm` cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.scaled_weight import ScaledWeight

if TYPE_CHECKING:
    from tessera_kernels.grouped_gemm import ExpertsWeight


def cost(
    rows: int, assignments: int, used: int, weight: ExpertsWeight, dtype: torch.dtype, *, gated: bool = False
) -> Cost:
    """Of one launch that uses `used` of the experts: their weights are read once, and every row of inputs."""
    numbers = weight.numbers_NK if isinstance(weight, ScaledWeight) else weight.numbers
    outputs = numbers.shape[-2]
    inputs = numbers.shape[-1] if isinstance(weight, ScaledWeight) else weight.inputs
    written = outputs // 2 if gated else outputs
    moved = weight.nbytes * used / weight.experts[0] + (rows * inputs + assignments * written) * dtype.itemsize
    unit = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    if isinstance(weight, ScaledWeight):
        unit = "int8" if numbers.dtype == torch.int8 else "fp8"
    return Cost(2.0 * assignments * inputs * outputs, moved, unit)
