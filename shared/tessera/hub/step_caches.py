"""Which step caches a video model can use, by what is known without loading it. Knows nothing about how they skip."""

from __future__ import annotations

from tessera.wire.models import StepCacheName

CALIBRATION_FILE = "step_calibration.json"
"""File in a model's directory with the measured changes between its steps."""


def step_caches_of(*, calibrated: bool, shared_by: int) -> list[StepCacheName]:
    """Return the step caches of a model whose steps a family of ours computes.

    Args:
        calibrated: whether it was measured for step caches.
        shared_by: number of devices that compute each pass together.
    """
    if shared_by > 1:
        return []
    return ["first_block", "polynomial", "magnitude"] if calibrated else ["first_block"]
