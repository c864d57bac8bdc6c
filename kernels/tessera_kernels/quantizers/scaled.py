"""Quantizes weights for `scaled_linear` to eight bits, with a scale for the tensor, each output, or each block."""

from __future__ import annotations

from typing import Literal

import torch

from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.storage.scaled_weight import BLOCK, ScaledWeight

Grain = Literal["tensor", "output", "block"]
_SMALLEST = 2.0**-126


def quantize_scaled(
    weight_NK: torch.Tensor, dtype: torch.dtype, grain: Grain = "output", *, largest_input: float | None = None
) -> ScaledWeight:
    """Quantize a weight, rounding to nearest.

    Args:
        weight_NK: [N, K], any float dtype.
        dtype: int8 or float8_e4m3fn.
        grain: which weights share a scale; a block has 128 · 128 weights.
        largest_input: the largest magnitude of inputs, if it was measured; inputs are then quantized by it.

    Raises:
        ValueError: another dtype.
    """
    if dtype not in LARGEST:
        raise ValueError(f"weights are rounded to {' or '.join(map(str, LARGEST))}, not {dtype}")
    values_NK, largest = weight_NK.float(), LARGEST[dtype]
    if grain == "block":
        outputs, inputs = values_NK.shape
        padded = torch.nn.functional.pad(values_NK.abs(), (0, -inputs % BLOCK, 0, -outputs % BLOCK))
        blocks = padded.reshape(-(-outputs // BLOCK), BLOCK, -(-inputs // BLOCK), BLOCK)
        scale = blocks.amax((1, 3)) / largest
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:outputs, :inputs]
    else:
        largest_N = values_NK.abs().amax(1)
        scale = (largest_N if grain == "output" else largest_N.amax().expand_as(largest_N)) / largest
        spread = scale[:, None]
    elements = values_NK / spread.clamp_min(_SMALLEST)
    if dtype == torch.int8:
        elements = elements.round()
    given = None if largest_input is None else torch.tensor([largest_input / largest], device=weight_NK.device)
    return ScaledWeight(elements.clamp(-largest, largest).to(dtype).contiguous(), scale.contiguous(), given)
