"""What tests of kernels share: one measure of error, and one table of bounds by dtype.

Imported as `from tests.kernels.support import BOUNDS, poisoned, relative_rms`.
"""

from __future__ import annotations

import torch

BOUNDS: dict[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: 1.5e-3,
    torch.bfloat16: 8e-3,
    torch.int8: 1.5e-2,
    torch.float8_e4m3fn: 5e-2,
}
"""Largest relative RMS error of a result whose roughest step, output included, has this dtype.

Two to four times the error of rounding to nearest once (for int8: with a scale for each row of random values).
"""


def relative_rms(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Root of the mean squared error over that of the exact values; 0 where there are none, inf where a NaN differs."""
    if got.shape != exact.shape:
        raise AssertionError(f"shapes differ: {tuple(got.shape)} and {tuple(exact.shape)}")
    if not exact.numel():
        return 0.0
    got, exact = got.detach().cpu().double(), exact.detach().cpu().double()
    if not torch.equal(torch.isfinite(got), torch.isfinite(exact)):
        return float("inf")
    finite = torch.isfinite(exact)
    error, size = (got - exact)[finite].square().sum(), exact[finite].square().sum()
    if not size:
        return 0.0 if not error else float("inf")
    return float((error / size).sqrt())


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """An output filled with a value that shows every element that a kernel does not write."""
    if dtype == torch.int8:
        return torch.full(shape, -128, dtype=dtype)
    return torch.full(shape, float("nan"), dtype=dtype)
