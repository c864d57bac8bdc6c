"""Least FLOPs and bytes of `grouped_gemm`, for the roofline."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.roofline import Cost

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class ProductSizes:
    """Sizes of one grouped product.

    Attributes:
        rows: rows of inputs, each read once.
        assignments: rows that are multiplied and written.
        outputs: outputs of the weight of one expert.
        inputs: inputs of the weight of one expert.
        gated: whether the result is gated, so that half as many outputs are written.
    """

    rows: int
    assignments: int
    outputs: int
    inputs: int
    gated: bool


def cost(product: ProductSizes, weights_bytes: float, dtype: torch.dtype, unit: str | None = None) -> Cost:
    """Cost of one launch.

    Args:
        product: sizes of the product.
        weights_bytes: bytes of the weights of experts that have an assignment.
        dtype: dtype of inputs and outputs.
        unit: unit of the FLOPs if inputs are quantized, `int8` or `fp8`; None for the unit of `dtype`.
    """
    written = product.outputs // 2 if product.gated else product.outputs
    moved = weights_bytes + (product.rows * product.inputs + product.assignments * written) * dtype.itemsize
    return Cost(2.0 * product.assignments * product.inputs * product.outputs, moved, unit or UNITS.get(dtype, "fp32"))
