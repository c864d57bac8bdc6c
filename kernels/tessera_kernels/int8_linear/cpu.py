"""`int8_linear` on a CPU: one compiled pass that quantizes and one that scales, around torch's integer product
(oneDNN with VNNI).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import torch

from tessera_kernels.cpu.compiled import ELEMENTWISE, available, compiled
from tessera_kernels.int8_linear.reference import SMALLEST
from tessera_kernels.int8_linear.weight import LEVELS, Int8Weight

if TYPE_CHECKING:
    import numpy as np
else:
    np = import_module("numpy") if available() else None

LARGEST_FLOAT32 = np.finfo(np.float32).max if available() else None


def suited(x_TK: torch.Tensor) -> bool:
    """Whether this implementation can run: float32 on a CPU."""
    return available() and x_TK.device.type == "cpu" and x_TK.dtype == torch.float32 and x_TK.is_contiguous()


def int8_linear(x_TK: torch.Tensor, weight: Int8Weight, bias_N: torch.Tensor | None) -> torch.Tensor:
    """Compiled implementation of `tessera_kernels.int8_linear.int8_linear`."""
    quantized_TK = torch.empty(x_TK.shape, dtype=torch.int8)
    scale_T = np.empty(x_TK.shape[0], np.float32)
    columns = weight.outlier_columns_M.numpy()
    outliers_TM = np.empty((x_TK.shape[0], len(columns)), np.float32)
    limits = np.float32(LEVELS), np.float32(SMALLEST)
    _quantize(x_TK.numpy(), weight.smoothing_K.numpy(), columns, *limits, quantized_TK.numpy(), scale_T, outliers_TM)
    sums_TN = torch._int_mm(quantized_TK, weight.weight_KN)
    out_TN = torch.empty(sums_TN.shape, dtype=torch.float32)
    bias = np.zeros(0, np.float32) if bias_N is None else bias_N.numpy()
    _scale(
        sums_TN.numpy(),
        scale_T,
        weight.scale_N.numpy(),
        outliers_TM,
        weight.outlier_weight_MN.numpy(),
        bias,
        out_TN.numpy(),
    )
    return out_TN


@compiled(ELEMENTWISE)
def _quantize(x_TK, smoothing_K, outlier_columns_M, levels, smallest, quantized_TK, scale_T, outliers_TM):  # type: ignore[no-untyped-def]
    tokens, width = x_TK.shape
    row_K = np.empty(width, np.float32)
    for t in range(tokens):
        for k in range(width):
            row_K[k] = x_TK[t, k] * smoothing_K[k]
        not_finite = 0
        for m in range(len(outlier_columns_M)):
            value = x_TK[t, outlier_columns_M[m]]
            outliers_TM[t, m] = value
            if not abs(value) <= LARGEST_FLOAT32:
                not_finite += 1
            row_K[outlier_columns_M[m]] = 0
        largest = smallest
        for k in range(width):
            value = abs(row_K[k])
            if not value <= LARGEST_FLOAT32:
                not_finite += 1
            largest = max(largest, value)
        factor = levels / largest
        for k in range(width):
            quantized_TK[t, k] = np.int8(np.rint(row_K[k] * factor))
        scale_T[t] = largest / levels if not_finite == 0 else np.float32(np.nan)


@compiled(ELEMENTWISE)
def _scale(sums_TN, scale_T, scale_N, outliers_TM, outlier_weight_MN, bias_N, out_TN):  # type: ignore[no-untyped-def]
    tokens, width = sums_TN.shape
    for t in range(tokens):
        for n in range(width):
            out_TN[t, n] = np.float32(sums_TN[t, n]) * scale_N[n] * scale_T[t]
        for m in range(outliers_TM.shape[1]):
            value = outliers_TM[t, m]
            for n in range(width):
                out_TN[t, n] += value * outlier_weight_MN[m, n]
        if len(bias_N):
            for n in range(width):
                out_TN[t, n] += bias_N[n]
