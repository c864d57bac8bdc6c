"""Chooses the implementation of an op that runs: each one states whether it supports given tensors, and if not, why.

The public function of an op asks its implementations, the fastest first, and falls back to its reference, which
supports everything. `disable_triton` turns Triton off for the whole process, to compare results or to avoid a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Support:
    """Whether an implementation can compute an op on given tensors.

    Attributes:
        ok: whether it can.
        reason: why it cannot, for people; empty if it can.
    """

    ok: bool
    reason: str = ""


SUPPORTED = Support(ok=True)


def unsupported(reason: str) -> Support:
    """An implementation that cannot compute the op because of `reason`."""
    return Support(ok=False, reason=reason)


_disabled_because = ""
_interpreted = False


def disable_triton(reason: str) -> None:
    """Let `triton_support` refuse all tensors from now on, with `reason`; an empty reason turns Triton on again."""
    global _disabled_because  # noqa: PLW0603 (one switch for the process)
    _disabled_because = reason


def interpret_on_cpu(on: bool) -> None:
    """Let Triton compute on CPU tensors too, to test whole models in Triton's interpreter.

    Args:
        on: whether CPU tensors are supported from now on; the kernels must have been imported under
            `TRITON_INTERPRET=1`.
    """
    global _interpreted  # noqa: PLW0603 (one switch for the process)
    _interpreted = on


def triton_support(*tensors: torch.Tensor | None) -> Support:
    """Whether Triton can compute on these tensors: Triton is installed, and all of them are on one GPU."""
    if _disabled_because:
        return unsupported(_disabled_because)
    if not HAS_TRITON:
        return unsupported("Triton is not installed")
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if any(device.type != "cuda" for device in devices) and not _interpreted:
        return unsupported(f"not on a GPU: {', '.join(sorted(map(str, devices)))}")
    if len(devices) > 1:
        return unsupported(f"on several devices: {', '.join(sorted(map(str, devices)))}")
    return SUPPORTED
