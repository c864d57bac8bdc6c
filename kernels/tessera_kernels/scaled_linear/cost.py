"""Least FLOPs and bytes of `scaled_linear`, for the roofline."""

from __future__ import annotations

import torch

from tessera_kernels.roofline import Cost


def cost(tokens: int, outputs: int, inputs: int, stored: torch.dtype, dtype: torch.dtype) -> Cost:
    """Cost of one product that quantizes its inputs: they are read once and not written again; scales are few.

    Args:
        tokens: rows of inputs.
        outputs: outputs of the layer.
        inputs: inputs of the layer.
        stored: dtype of the quantized weight, int8 or float8.
        dtype: dtype of inputs and outputs.
    """
    moved = outputs * inputs + 4 * outputs + tokens * (inputs + outputs) * dtype.itemsize
    return Cost(2.0 * tokens * inputs * outputs, moved, "int8" if stored == torch.int8 else "fp8")


def quantize_cost(tokens: int, inputs: int, dtype: torch.dtype) -> Cost:
    """Cost of quantizing tokens alone."""
    return Cost(0.0, tokens * inputs * (dtype.itemsize + 1), "fp32")
