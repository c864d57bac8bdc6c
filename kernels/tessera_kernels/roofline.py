"""What an op cannot do without, what a device can do at most, and how near to it a time is.

Peaks are measured on the device in the same run, never read from a data sheet. Does not know ops: each has a `cost.py`
that says its FLOPs and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Of one run.

    Attributes:
        flops: multiplications and additions, each counted.
        moved: bytes that are read once and written once, were the caches perfect.
        unit: which of a device's peaks the FLOPs are measured by: `bf16`, `fp16`, `fp8`, `int8` or `fp32`.
    """

    flops: float
    moved: float
    unit: str = "fp32"


@dataclass(frozen=True)
class Peaks:
    """Of a device: bytes a second of a copy (read and written), and FLOPs a second of a large product by unit."""

    bandwidth: float
    flops: Mapping[str, float]


def least_seconds(cost: Cost, peaks: Peaks) -> float:
    """No run can be shorter: the longer of moving the bytes and doing the arithmetic."""
    arithmetic = cost.flops / peaks.flops[cost.unit] if cost.unit in peaks.flops else 0.0
    return max(cost.moved / peaks.bandwidth, arithmetic)


def fraction(cost: Cost, peaks: Peaks, seconds: float) -> float:
    """Of the limit, that a run of `seconds` reaches (DESIGN, how things are measured)."""
    return least_seconds(cost, peaks) / seconds


def limited_by(cost: Cost, peaks: Peaks) -> str:
    """`bytes` or the unit, whichever takes longer."""
    arithmetic = cost.flops / peaks.flops[cost.unit] if cost.unit in peaks.flops else 0.0
    return "bytes" if cost.moved / peaks.bandwidth >= arithmetic else cost.unit
