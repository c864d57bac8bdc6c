"""The roofline: FLOPs and bytes of one run of an op, peaks of a device, and how close a measured time is to the limit.

Peaks are measured on the device in the same run, never read from a data sheet. Knows no ops: the `cost.py` of each op
counts its FLOPs and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Least FLOPs and bytes of one run of an op.

    Attributes:
        flops: number of multiplications and additions; a fused multiply-add counts as two.
        moved: bytes read and written if each input is read once and each output is written once (perfect caches).
        unit: which peak of the device bounds the FLOPs: `bf16`, `fp16`, `fp8`, `int8` or `fp32`.
    """

    flops: float
    moved: float
    unit: str = "fp32"


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a device.

    Attributes:
        bandwidth: bytes per second of a copy, where bytes read and bytes written both count.
        flops: FLOPs per second of a large matrix product, by unit as in `Cost.unit`.
    """

    bandwidth: float
    flops: Mapping[str, float]


def least_seconds(cost: Cost, peaks: Peaks) -> float:
    """Lower bound on the seconds of a run: the time to move the bytes or to do the FLOPs, whichever is longer."""
    arithmetic = cost.flops / peaks.flops[cost.unit] if cost.unit in peaks.flops else 0.0
    return max(cost.moved / peaks.bandwidth, arithmetic)


def fraction(cost: Cost, peaks: Peaks, seconds: float) -> float:
    """Fraction of the roofline that a run of `seconds` reaches: max(FLOPs / peak, bytes / bandwidth) / seconds."""
    return least_seconds(cost, peaks) / seconds


def limited_by(cost: Cost, peaks: Peaks) -> str:
    """What bounds the run: `bytes`, or the name of the unit if its FLOPs take longer than the bytes."""
    arithmetic = cost.flops / peaks.flops[cost.unit] if cost.unit in peaks.flops else 0.0
    return "bytes" if cost.moved / peaks.bandwidth >= arithmetic else cost.unit
