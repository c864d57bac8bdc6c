"""Error of quantized layers, of their weights, or of their outputs if inputs are available."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LayerError:
    """Quantization error of one layer.

    Attributes:
        name: name of the layer.
        relative_rms: root mean square of the error over that of the exact values.
        largest: magnitude of the largest error.
        sqnr_db: signal-to-quantization-noise ratio in dB, 20 · log10(1 / relative_rms); infinite without an error.
    """

    name: str
    relative_rms: float
    largest: float
    sqnr_db: float


def layer_error(name: str, exact: torch.Tensor, approximate: torch.Tensor) -> LayerError:
    """Compare a quantized layer with the exact one.

    Args:
        name: name of the layer.
        exact: the weight or the output of the layer before quantization; any shape and float dtype.
        approximate: the same tensor after quantization.

    Raises:
        ValueError: the shapes differ.
    """
    if exact.shape != approximate.shape:
        raise ValueError(f"{name}: {tuple(exact.shape)} cannot be compared with {tuple(approximate.shape)}")
    if not exact.numel():
        return LayerError(name, 0.0, 0.0, math.inf)
    difference, size = approximate.double() - exact.double(), exact.double().square().sum()
    lost = difference.square().sum()
    relative = float((lost / size).sqrt()) if size > 0 else (0.0 if lost == 0 else math.inf)
    decibels = math.inf if relative == 0 else -20 * math.log10(relative)
    return LayerError(name, relative, float(difference.abs().max()), decibels)


def table(layers: Iterable[LayerError]) -> str:
    """A Markdown table of the layers, sorted by relative RMS error, the largest first."""
    rows = sorted(layers, key=lambda layer: -layer.relative_rms)
    lines = ["| layer | relative RMS | largest error | SQNR dB |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.relative_rms:.2e} | {row.largest:.2e} | {row.sqnr_db:.1f} |" for row in rows]
    return "\n".join(lines) + "\n"
