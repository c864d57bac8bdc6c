"""Quantizes rows in plain torch, with one scale for each row: the reference of `row_quantize`, and what a CPU runs."""

from __future__ import annotations

import torch

from tessera_kernels.storage.paged_kv import LARGEST, quantize


def quantized_rows(y_TK: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows to elements [..., K] of `dtype` and float32 scales [...]; elements times scales are the rows."""
    return quantize(y_TK.float(), dtype)


def check_quantized(dtype: torch.dtype) -> None:
    """Check that rows can be quantized to `dtype`.

    Raises:
        ValueError: `dtype` is neither int8 nor float8 e4m3.
    """
    if dtype not in LARGEST:
        raise ValueError(f"rows are quantized to {' or '.join(map(str, LARGEST))}, not {dtype}")
