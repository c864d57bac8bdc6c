"""What `weight_only_linear` cannot do without."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.storage.quantized_weight import NIBBLES, QuantizedWeight

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Inputs of 16 bits are multiplied in 16 bits, whatever the weight has."""


def cost(tokens: int, outputs: int, inputs: int, weight_bytes: float, dtype: torch.dtype) -> Cost:
    """Of one product."""
    moved = weight_bytes + tokens * (inputs + outputs) * dtype.itemsize
    return Cost(2.0 * tokens * inputs * outputs, moved, UNITS.get(dtype, "fp32"))


def bytes_like(sample: QuantizedWeight, outputs: int, inputs: int) -> float:
    """Bytes of a weight of that size in the sample's scheme."""
    numbers = outputs * inputs * (0.5 if sample.format in NIBBLES else sample.elements.dtype.itemsize)
    groups = -(-inputs // sample.group) * outputs
    by_group = [tensor for tensor in (sample.scale_GN, sample.zero_GN) if tensor is not None]
    return numbers + groups * sum(tensor.dtype.itemsize for tensor in by_group)
