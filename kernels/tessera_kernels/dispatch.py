"""Which implementation of an op runs: a candidate answers whether it can, and if not, why.

An op's public function asks its candidates in order of speed and falls back to its reference, which always can.
Triton can be turned off for the whole process, to compare or to go round a fault: see `without_triton`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Answer:
    """Whether a candidate can compute something; the reason is for people, and empty when it can."""

    ok: bool
    reason: str = ""


YES = Answer(ok=True)


def no(reason: str) -> Answer:
    """A candidate cannot, because of `reason`."""
    return Answer(ok=False, reason=reason)


_off = ""
_interpreted = False


def without_triton(reason: str) -> None:
    """From now on `triton_on` answers no, with `reason`; empty turns Triton on again."""
    global _off  # noqa: PLW0603 (one switch for the process)
    _off = reason


def interpret_on_cpu(on: bool) -> None:
    """From now on tensors on a CPU are for Triton too: for tests of whole models in its interpreter.

    Args:
        on: whether; the kernels must have been imported under `TRITON_INTERPRET=1`.
    """
    global _interpreted  # noqa: PLW0603 (one switch for the process)
    _interpreted = on


def triton_on(*tensors: torch.Tensor | None) -> Answer:
    """Whether Triton can compute on these tensors: it is installed, and all of them are on one GPU."""
    if _off:
        return no(_off)
    if not HAS_TRITON:
        return no("Triton is not installed")
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if any(device.type != "cuda" for device in devices) and not _interpreted:
        return no(f"not on a GPU: {', '.join(sorted(map(str, devices)))}")
    if len(devices) > 1:
        return no(f"on several devices: {', '.join(sorted(map(str, devices)))}")
    return YES
