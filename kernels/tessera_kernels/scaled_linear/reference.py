"""`scaled_linear` in plain torch: elements of eight bits, multiplied and added in float64, so that int8 is exact."""

from __future__ import annotations

import torch

from tessera_kernels.storage.paged_kv import LARGEST, quantize
from tessera_kernels.storage.scaled_weight import BLOCK, ScaledWeight, dequantize


def quantize_tokens(x_TK: torch.Tensor, dtype: torch.dtype, *, blocks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `tessera_kernels.scaled_linear.quantize_tokens`."""
    if not blocks:
        return quantize(x_TK.float(), dtype) if x_TK.shape[1] else (x_TK.to(dtype), x_TK.new_zeros(len(x_TK)).float())
    inputs = x_TK.shape[1]
    padded = torch.nn.functional.pad(x_TK.float(), (0, -inputs % BLOCK))
    quantized, scale_TJ = quantize(padded.reshape(len(x_TK), -(-inputs // BLOCK), BLOCK), dtype)
    return quantized.view(torch.uint8).flatten(1)[:, :inputs].contiguous().view(dtype), scale_TJ


def quantize_by(x_TK: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize tokens by a given scale; the scale of a token that is not finite is NaN."""
    quantized = x_TK.float() / scale
    if not dtype.is_floating_point:
        quantized = quantized.round()
    finite_T = x_TK.isfinite().all(1)
    clamped = quantized.clamp(-LARGEST[dtype], LARGEST[dtype]).nan_to_num(0.0).to(dtype)
    return clamped, torch.where(finite_T, scale, torch.nan)


def scaled_linear(x_TK: torch.Tensor, weight: ScaledWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
    """Reference of `tessera_kernels.scaled_linear.scaled_linear`."""
    if weight.input_scale is None:
        quantized, scale = quantize_tokens(x_TK, weight.elements_NK.dtype, blocks=weight.blocked)
    else:
        quantized, scale = quantize_by(x_TK, weight.elements_NK.dtype, weight.input_scale)
    spread = scale.repeat_interleave(BLOCK, 1)[:, : x_TK.shape[1]] if weight.blocked else scale[:, None]
    out = (quantized.double() * spread.double()) @ dequantize(weight).double().t()
    return (out if bias_N is None else out + bias_N.double()).to(x_TK.dtype)
