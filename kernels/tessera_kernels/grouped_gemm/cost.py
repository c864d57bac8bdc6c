"""What `grouped_gemm` cannot do without."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.roofline import Cost

UNITS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class ProductSizes:
    """Sizes of one product of experts.

    Attributes:
        rows: of inputs, each read once.
        assignments: rows that are multiplied and written.
        outputs: of the weight.
        inputs: of it.
        gated: whether half as many outputs are written.
    """

    rows: int
    assignments: int
    outputs: int
    inputs: int
    gated: bool


def cost(layer: ProductSizes, weights_bytes: float, dtype: torch.dtype, unit: str | None = None) -> Cost:
    """Of one launch; `weights_bytes` are those of the experts that have any assignment, `unit` that of eight bits."""
    written = layer.outputs // 2 if layer.gated else layer.outputs
    moved = weights_bytes + (layer.rows * layer.inputs + layer.assignments * written) * dtype.itemsize
    return Cost(2.0 * layer.assignments * layer.inputs * layer.outputs, moved, unit or UNITS.get(dtype, "fp32"))
