"""Measures how a model's steps change, so that step caches know when a step may be skipped: one uncached clip.

What is found is a file in the model's directory. Does not decide (`tessera.diffusion.step_cache.policies`).
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

logger = logging.getLogger(__name__)

FILE = "step_calibration.json"
MOST_POWERS = 4
"""Of the polynomial, as TeaCache has it; fewer for few steps, which would be fitted exactly."""
STEPS_FOR_A_POWER = 5


def calibrate(model: FamilyModel, request: DiffusionRequest) -> StepCalibration:
    """Make the request's clip with every step computed, and look at the half of guidance that has its prompt.

    Args:
        model: is stepped by nobody else.
        request: of at least four steps; what a user would ask for.
    """
    assert request.steps > 3
    assert request.step_cache is None
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(row: int, signal: torch.Tensor, residual: torch.Tensor) -> None:
        if row == 0:
            seen.append((signal, residual))

    changes: list[tuple[float, float]] = []
    ratios = [1.0]
    state = model.begin(request)
    before: tuple[int, torch.Tensor, torch.Tensor] | None = None
    for blocks in model.blocks.values():
        blocks.look = look
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
            blocks.look = None
    given, told = np.array(changes).T
    powers = max(1, min(MOST_POWERS, len(given) // STEPS_FOR_A_POWER))
    return StepCalibration(
        coefficients=[float(value) for value in np.polyfit(given, told, powers)],
        least=float(given.min()),
        most=float(given.max()),
        ratios=ratios,
    )


def read(directory: Path) -> StepCalibration | None:
    """What was measured of the model in a directory; None: nothing that can be read."""
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepCalibration)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s cannot be read and is passed over: %s", path, error)
        return None


def write(directory: Path, calibration: StepCalibration) -> Path:
    """Keep it. Raises `OSError`."""
    path = directory / FILE
    new = path.with_name(f".{FILE}.{os.getpid()}")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    return new.replace(path)


def _size_ratio(now: torch.Tensor, before: torch.Tensor) -> float:
    """Mean over tokens of the norms' ratio, as MagCache has it."""
    sizes = torch.linalg.vector_norm(now.float(), dim=-1) / (torch.linalg.vector_norm(before.float(), dim=-1) + 1e-8)
    return float(sizes.mean())
