"""`rms_norm` on a CPU as one compiled loop over rows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from tessera_kernels.cpu.compiled import REDUCTIONS, available, compiled

np: Any = import_module("numpy") if available() else None


def suited(x_TK: torch.Tensor, weight_K: torch.Tensor) -> bool:
    """Whether this implementation supports the tensors: float32, contiguous and on a CPU."""
    return (
        available()
        and x_TK.device.type == "cpu"
        and x_TK.dtype == weight_K.dtype == torch.float32
        and x_TK.is_contiguous()
    )


def rms_norm(x_TK: torch.Tensor, weight_K: torch.Tensor, epsilon: float, offset: float) -> torch.Tensor:
    """Compute `tessera_kernels.rms_norm.rms_norm`."""
    out = torch.empty_like(x_TK)
    width = x_TK.shape[-1]
    rows, filled = x_TK.view(-1, width).numpy(), out.view(-1, width).numpy()
    _rms_norm(rows, weight_K.numpy(), np.float32(epsilon), np.float32(offset), filled)
    return out


@compiled(REDUCTIONS)
def _rms_norm(x_TK, weight_K, epsilon, offset, out_TK):  # type: ignore[no-untyped-def]
    rows, width = x_TK.shape
    for t in range(rows):
        total = np.float32(0)
        for k in range(width):
            total += x_TK[t, k] * x_TK[t, k]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
        for k in range(width):
            out_TK[t, k] = x_TK[t, k] * scale * (weight_K[k] + offset)
