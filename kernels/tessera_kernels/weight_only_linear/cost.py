"""Least FLOPs and bytes of `weight_only_linear`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost
from tessera_kernels.storage.quantized_weight import NIBBLES, QuantizedWeight

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Unit by dtype of the inputs: inputs of 16 bits are multiplied in 16 bits, whatever the format of the weight."""


def cost(tokens: int, outputs: int, inputs: int, weight_bytes: float, dtype: torch.dtype) -> Cost:
    """Cost of one product; `weight_bytes` are the bytes of the weight with its scales."""
    moved = weight_bytes + tokens * (inputs + outputs) * dtype.itemsize
    return Cost(2.0 * tokens * inputs * outputs, moved, UNITS.get(dtype, "fp32"))


def bytes_like(sample: QuantizedWeight, outputs: int, inputs: int) -> float:
    """Bytes of a weight of that size in the scheme of `sample`, with scales and zero points."""
    elements = outputs * inputs * (0.5 if sample.format in NIBBLES else sample.elements.dtype.itemsize)
    groups = -(-inputs // sample.group) * outputs
    by_group = [tensor for tensor in (sample.scale_GN, sample.zero_GN) if tensor is not None]
    return elements + groups * sum(tensor.dtype.itemsize for tensor in by_group)
