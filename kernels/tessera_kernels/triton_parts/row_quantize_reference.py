"""A scale per row in plain torch: what ops that end in quantizing compute, and on a CPU run."""

from __future__ import annotations

import torch

from tessera_kernels.storage.paged_kv import LARGEST, quantize


def quantized_rows(y_TK: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [..., K] of `dtype` and float32 scales [...]; numbers times their scale are the rows."""
    return quantize(y_TK.float(), dtype)


def check_quantized(dtype: torch.dtype) -> None:
    """Raise unless rows can be quantized to it.

    Raises:
        ValueError: it is neither int8 nor float8 e4m3.
    """
    if dtype not in LARGEST:
        raise ValueError(f"rows are quantized to {' or '.join(map(str, LARGEST))}, not {dtype}")
