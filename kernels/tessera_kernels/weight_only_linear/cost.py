"""What `weight_only_linear` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.quantized_weight import QuantizedWeight
from tessera_kernels.roofline import Cost


def cost(tokens: int, weight: QuantizedWeight, dtype: torch.dtype) -> Cost:
    """Of one product; inputs of 16 bits are multiplied in 16 bits, whatever the weight has."""
    moved = weight.nbytes + tokens * (weight.inputs + weight.outputs) * dtype.itemsize
    unit = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    return Cost(2.0 * tokens * weight.inputs * weight.outputs, moved, unit)
