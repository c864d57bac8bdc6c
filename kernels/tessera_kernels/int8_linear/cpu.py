"""`int8_linear` on a CPU: rounding and scaling in one pass each, around torch's integer product (oneDNN, VNNI)."""

from __future__ import annotations

import numpy as np
import torch

from tessera_kernels.compiled import ELEMENTS, available, compiled
from tessera_kernels.int8_linear.reference import LEVELS, SMALLEST

HUGE = np.finfo(np.float32).max


def suited(x_TK: torch.Tensor) -> bool:
    """Whether this implementation can run: float32 on a CPU."""
    return available() and x_TK.device.type == "cpu" and x_TK.dtype == torch.float32 and x_TK.is_contiguous()


def int8_linear(
    x_TK: torch.Tensor, weight_KN: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """See `tessera_kernels.int8_linear.int8_linear`."""
    quantized_TK = torch.empty(x_TK.shape, dtype=torch.int8)
    scale_T = np.empty(x_TK.shape[0], np.float32)
    _quantize(x_TK.numpy(), np.float32(LEVELS), np.float32(SMALLEST), quantized_TK.numpy(), scale_T)
    sums_TN = torch._int_mm(quantized_TK, weight_KN)
    out_TN = torch.empty(sums_TN.shape, dtype=torch.float32)
    bias = np.zeros(0, np.float32) if bias_N is None else bias_N.numpy()
    _scale(sums_TN.numpy(), scale_T, scale_N.numpy(), bias, out_TN.numpy())
    return out_TN


@compiled(ELEMENTS)
def _quantize(x_TK, levels, smallest, quantized_TK, scale_T):  # type: ignore[no-untyped-def]
    tokens, width = x_TK.shape
    for t in range(tokens):
        largest = smallest
        bad = 0
        for k in range(width):
            value = abs(x_TK[t, k])
            if not value <= HUGE:
                bad += 1
            largest = max(largest, value)
        factor = levels / largest
        for k in range(width):
            quantized_TK[t, k] = np.int8(np.rint(x_TK[t, k] * factor))
        scale_T[t] = largest / levels if bad == 0 else np.float32(np.nan)


@compiled(ELEMENTS)
def _scale(sums_TN, scale_T, scale_N, bias_N, out_TN):  # type: ignore[no-untyped-def]
    tokens, width = sums_TN.shape
    for t in range(tokens):
        if len(bias_N):
            for n in range(width):
                out_TN[t, n] = np.float32(sums_TN[t, n]) * scale_N[n] * scale_T[t] + bias_N[n]
        else:
            for n in range(width):
                out_TN[t, n] = np.float32(sums_TN[t, n]) * scale_N[n] * scale_T[t]
