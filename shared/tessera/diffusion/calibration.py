"""Measures how a model's steps change over one uncached clip, so that step caches know when a step may be skipped.

The measurement is kept as a file in the model's directory. Does not decide which steps skip
(`tessera.diffusion.step_cache.policies` does).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import numpy as np
import torch

from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.request import DiffusionRequest
from tessera.diffusion.step_cache.policies import StepCalibration, relative
from tessera.errors import ModelLoadError
from tessera.hub.step_caches import CALIBRATION_FILE
from tessera.tokenizer.model_files import read_as

logger = logging.getLogger(__name__)

MAX_DEGREE = 4
"""Highest degree of the fitted polynomial, as in TeaCache. Few steps get a lower degree, or the fit would be exact."""
STEPS_PER_DEGREE = 5
"""Measured changes that each degree of the polynomial needs."""


def calibrate(model: FamilyModel, request: DiffusionRequest) -> StepCalibration:
    """Denoise the request with every step computed, and measure the rows that have its prompt (not the negative one).

    Args:
        model: nobody else may step it meanwhile.
        request: a typical request with at least four steps and no step cache.
    """
    assert request.steps > 3
    assert request.step_cache is None
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(row: int, signal: torch.Tensor, residual: torch.Tensor) -> None:
        if row == 0:
            seen.append((signal, residual))

    changes: list[tuple[float, float]] = []
    ratios = [1.0]
    state = model.begin(request)
    before: tuple[int, torch.Tensor, torch.Tensor] | None = None
    for blocks in model.blocks.values():
        blocks.on_row_computed = record
    try:
        while not state.done:
            expert = id(model.expert(state))
            model.step([state])
            signal, residual = seen.pop()
            if before is not None:
                same = before[0] == expert
                ratios.append(_size_ratio(residual, before[2]) if same else 1.0)
                if same:
                    changes.append((float(relative(signal, before[1])), float(relative(residual, before[2]))))
            before = expert, signal, residual
    finally:
        for blocks in model.blocks.values():
            blocks.on_row_computed = None
    signal_changes, residual_changes = np.array(changes).T
    degree = max(1, min(MAX_DEGREE, len(signal_changes) // STEPS_PER_DEGREE))
    return StepCalibration(
        coefficients=[float(value) for value in np.polyfit(signal_changes, residual_changes, degree)],
        least=float(signal_changes.min()),
        most=float(signal_changes.max()),
        ratios=ratios,
    )


def read(directory: Path) -> StepCalibration | None:
    """Read the calibration from a model's directory; None when there is none, or none that can be read."""
    path = directory / CALIBRATION_FILE
    try:
        return read_as(path, StepCalibration) if path.is_file() else None
    except ModelLoadError as error:
        logger.warning("the calibration cannot be read and is passed over: %s", error.message)
        return None


def write(directory: Path, calibration: StepCalibration) -> Path:
    """Write the calibration into a model's directory, replacing an older one atomically.

    Raises:
        OSError: the directory cannot be written to.
    """
    path = directory / CALIBRATION_FILE
    new = path.with_name(f".{CALIBRATION_FILE}.{os.getpid()}")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    return new.replace(path)


def _size_ratio(now: torch.Tensor, before: torch.Tensor) -> float:
    """Mean over tokens of the ratio of two residuals' norms, as MagCache defines it."""
    sizes = torch.linalg.vector_norm(now.float(), dim=-1) / (torch.linalg.vector_norm(before.float(), dim=-1) + 1e-8)
    return float(sizes.mean())
