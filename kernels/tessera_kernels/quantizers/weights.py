"""Quantizes weights to four and eight bits: round to nearest, with scales from the range or the least squared error.

Elements are computed with the scale as it is stored, so that rounding the scale adds no second error.

Shape letters: N outputs, K inputs, G groups of inputs, C inputs of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch

from tessera_kernels.storage.quantized_weight import (
    E2M1,
    INT4_ZERO_POINT,
    LONGEST_RUN,
    QuantizedWeight,
    exponents,
    pack,
    run_of,
)

Clip = Literal["range", "mse"]
RATIOS = tuple(1 - 0.025 * step for step in range(21))
"""Fractions of the range of a group that the search for the least squared error tries, the whole range first."""
_SMALLEST = 2.0**-24
"""Smallest scale, which float16 can represent as a value other than zero."""
FP8_LARGEST = 448.0
E2M1_LARGEST = E2M1[-1]
_Candidate = Callable[[float], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def quantize_int4(
    weight_NK: torch.Tensor,
    group: int = 128,
    *,
    symmetric: bool = True,
    clip: Clip = "range",
    scale_dtype: torch.dtype = torch.float16,
) -> QuantizedWeight:
    """Quantize to four bits with a scale, and unless symmetric a zero point, for each group of inputs.

    Args:
        weight_NK: [N, K], any float dtype.
        group: number of inputs that share a scale: 32, 64 or 128.
        symmetric: whether elements are -8 to 7; otherwise they are 0 to 15 with a zero point.
        clip: `range` for scales that cover the range of a group, `mse` for the least squared error among `RATIOS`.
        scale_dtype: dtype of the scales.

    Raises:
        ValueError: another group size.
    """
    if group not in {32, 64, 128}:
        raise ValueError(f"groups of 32, 64 or 128 inputs, not of {group}")
    values_NGC = _grouped(weight_NK, group)
    high_NG1 = values_NGC.amax(-1, keepdim=True).clamp_min(0)
    low_NG1 = values_NGC.amin(-1, keepdim=True).clamp_max(0)
    largest_NG1 = torch.maximum(high_NG1, -low_NG1)

    def candidate(ratio: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wanted = ratio * (largest_NG1 / (INT4_ZERO_POINT - 1) if symmetric else (high_NG1 - low_NG1) / 15)
        scale = _stored(wanted, scale_dtype)
        zero = torch.full_like(scale, INT4_ZERO_POINT) if symmetric else (-ratio * low_NG1 / scale).round().clamp(0, 15)
        elements = ((values_NGC / scale).round() + zero).clamp(0, 15)
        return elements, scale, zero

    def dequantized(elements: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return (elements - zero) * scale

    elements, scale, zero = _least_error(values_NGC, candidate, dequantized, RATIOS if clip == "mse" else (1.0,))
    packed = pack(elements.flatten(1)[:, : weight_NK.shape[1]], run_of(group))
    zero_GN = None if symmetric else _by_group(zero).to(torch.uint8)
    return QuantizedWeight("int4", weight_NK.shape[1], group, packed, _by_group(scale).to(scale_dtype), zero_GN)


def quantize_int4_offsets(weight_NK: torch.Tensor, group: int = 32) -> QuantizedWeight:
    """Quantize to four bits with a scale and an offset for each group, both float32, as in GGUF's Q4_0 and Q4_1.

    Each group gets the least squared error among scales from its two ends (as Q4_1), scales from its largest magnitude
    (as Q4_0, where zero is exact), and narrower ones of both. Weights that were dequantized from such blocks are
    therefore quantized again without loss, if groups are the 32 inputs of the blocks.

    Args:
        weight_NK: [N, K], any float dtype.
        group: number of inputs that share a scale: 32, 64 or 128.

    Raises:
        ValueError: another group size.
    """
    if group not in {32, 64, 128}:
        raise ValueError(f"groups of 32, 64 or 128 inputs, not of {group}")
    values_NGC = _grouped(weight_NK, group)
    high_NG1, low_NG1 = values_NGC.amax(-1, keepdim=True), values_NGC.amin(-1, keepdim=True)
    extreme_NG1 = torch.where(high_NG1 > -low_NG1, high_NG1, low_NG1)

    def candidate(ratio: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if ratio > 0:  # from end to end, around the middle of both
            scale = ratio * (high_NG1 - low_NG1) / 15
            offset = (high_NG1 + low_NG1) / 2 - 7.5 * scale
        else:  # the largest magnitude is element 0, 8 steps from zero
            scale = ratio * extreme_NG1 / INT4_ZERO_POINT
            offset = -INT4_ZERO_POINT * scale
        steps = torch.where(scale.abs() < _SMALLEST, _SMALLEST, scale)
        return ((values_NGC - offset) / steps).round().clamp(0, 15), scale, offset

    def dequantized(elements: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return elements * scale + offset

    narrower = RATIOS[1:]
    choices = (1.0, -1.0, *narrower, *(-ratio for ratio in narrower))
    elements, scale, offset = _least_error(values_NGC, candidate, dequantized, choices)
    packed = pack(elements.flatten(1)[:, : weight_NK.shape[1]], run_of(group))
    return QuantizedWeight("int4", weight_NK.shape[1], group, packed, _by_group(scale), _by_group(offset))


def quantize_int8(weight_NK: torch.Tensor, group: int | None = None) -> QuantizedWeight:
    """Quantize to int8 with a float32 scale for each output, or for each group of 32, 64 or 128 inputs of it."""
    values_NGC, group = _grouped_or_whole(weight_NK, group)
    scale = _stored(values_NGC.abs().amax(-1, keepdim=True) / 127, torch.float32)
    elements = (values_NGC / scale).round().to(torch.int8)
    return QuantizedWeight("int8", weight_NK.shape[1], group, _without_padding(elements, weight_NK), _by_group(scale))


def quantize_fp8(weight_NK: torch.Tensor, group: int | None = None) -> QuantizedWeight:
    """Quantize to float8 (e4m3) with a float32 scale for each output or group, for products with 16-bit inputs."""
    values_NGC, group = _grouped_or_whole(weight_NK, group)
    scale = _stored(values_NGC.abs().amax(-1, keepdim=True) / FP8_LARGEST, torch.float32)
    elements = (values_NGC / scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
    return QuantizedWeight("fp8", weight_NK.shape[1], group, _without_padding(elements, weight_NK), _by_group(scale))


def quantize_mxfp4(weight_NK: torch.Tensor, *, clip: Clip = "range") -> QuantizedWeight:
    """Quantize to e2m1 with a power-of-two scale for 32 inputs (OCP Microscaling Formats 1.0, section 6.3).

    With `mse`, the power above and the power below are tried too.
    """
    values_NGC = _grouped(weight_NK, 32)
    largest_NG1 = values_NGC.abs().amax(-1, keepdim=True)
    # The largest power of two in the group becomes 4, the largest one of e2m1; values above 6 are clipped.
    base_NG1 = torch.frexp(largest_NG1).exponent - 1 - 2 + 127

    def candidate(step: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        bits = (base_NG1 + int(step)).clamp(0, 254)
        bits = torch.where(largest_NG1.isfinite(), bits, 255)
        return _e2m1(values_NGC / exponents(bits)), exponents(bits), bits

    def dequantized(elements: torch.Tensor, scale: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return _values(elements) * scale

    elements, _, bits = _least_error(values_NGC, candidate, dequantized, (0, 1, -1) if clip == "mse" else (0,))
    packed = pack(elements.flatten(1)[:, : weight_NK.shape[1]], 32)
    return QuantizedWeight("mxfp4", weight_NK.shape[1], 32, packed, _by_group(bits).to(torch.uint8))


def quantize_nvfp4(weight_NK: torch.Tensor, *, clip: Clip = "range") -> QuantizedWeight:
    """Quantize to e2m1 with an e4m3 scale for 16 inputs and a float32 scale for all.

    Source: NVIDIA, NVFP4 pretraining 2025, section 2.
    """
    values_NGC = _grouped(weight_NK, 16)
    largest_NG1 = values_NGC.abs().amax(-1, keepdim=True)
    whole = (largest_NG1.amax() / (E2M1_LARGEST * FP8_LARGEST)).clamp_min(torch.finfo(torch.float32).tiny)

    def candidate(ratio: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wanted = (ratio * largest_NG1 / E2M1_LARGEST / whole).clamp(2.0**-9, FP8_LARGEST)
        scale = wanted.to(torch.float8_e4m3fn).float()
        return _e2m1(values_NGC / (scale * whole)), scale, scale

    def dequantized(elements: torch.Tensor, scale: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return _values(elements) * scale * whole

    elements, scale, _ = _least_error(values_NGC, candidate, dequantized, RATIOS if clip == "mse" else (1.0,))
    packed = pack(elements.flatten(1)[:, : weight_NK.shape[1]], 16)
    scale_GN = _by_group(scale).to(torch.float8_e4m3fn)
    return QuantizedWeight("nvfp4", weight_NK.shape[1], 16, packed, scale_GN, None, whole.reshape(1))


def _least_error(
    values_NGC: torch.Tensor,
    candidate: _Candidate,
    dequantized: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    choices: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The candidate with the least squared error, chosen for each group on its own."""
    best = candidate(choices[0])
    if len(choices) == 1:
        return best
    least = (dequantized(*best) - values_NGC).square().sum(-1, keepdim=True)
    for choice in choices[1:]:
        tried = candidate(choice)
        error = (dequantized(*tried) - values_NGC).square().sum(-1, keepdim=True)
        better = error < least
        least = torch.where(better, error, least)
        elements, scale, other = (torch.where(better, new, old) for new, old in zip(tried, best, strict=True))
        best = elements, scale, other
    return best


def _e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest e2m1 values, ties to even; values beyond the largest get the largest."""
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1)])
    # `bucketize` assigns a tie to the lower value; every second tie belongs to the upper, even one.
    middles[1::2] = torch.nextafter(middles[1::2], torch.zeros(1))
    magnitude = torch.bucketize(values.abs().nan_to_num(0.0), middles.to(values.device))
    return magnitude + 8 * (values < 0)


def _values(elements: torch.Tensor) -> torch.Tensor:
    return torch.tensor((*E2M1, *(-value for value in E2M1)), device=elements.device)[elements]


def _stored(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return scale.clamp_min(_SMALLEST).to(dtype).float()


def _grouped(weight_NK: torch.Tensor, group: int) -> torch.Tensor:
    """The weight as float32 [N, G, C], with the last group padded with zeros."""
    inputs = weight_NK.shape[1]
    padded = torch.nn.functional.pad(weight_NK.float(), (0, -inputs % group))
    return padded.reshape(weight_NK.shape[0], -1, group)


def _grouped_or_whole(weight_NK: torch.Tensor, group: int | None) -> tuple[torch.Tensor, int]:
    if group not in {None, 32, 64, 128}:
        raise ValueError(f"groups of 32, 64 or 128 inputs, or one for each output (None), not of {group}")
    group = -(-weight_NK.shape[1] // LONGEST_RUN) * LONGEST_RUN if group is None else group
    return _grouped(weight_NK, group), group


def _by_group(values_NG1: torch.Tensor) -> torch.Tensor:
    return values_NG1[..., 0].t().contiguous()


def _without_padding(elements_NGC: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    return elements_NGC.flatten(1)[:, : weight_NK.shape[1]].contiguous()
