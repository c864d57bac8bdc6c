"""Copies between host and device that do not wait for the work queued on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def synchronize(device: torch.device) -> None:
    """Wait until everything that is queued on `device` has run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(values: Sequence[float], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Values of the host as a tensor on `device`, without waiting for the work queued there."""
    on_host = torch.tensor(values, dtype=dtype)
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)


class Readback:
    """A copy of tensors to the host, queued behind the present work of their device.

    Args:
        tensors: of any devices. Those of a CPU are returned as they are.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._arrived: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._tensors = [
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            ]
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def read(self) -> list[torch.Tensor]:
        """The tensors on the host. Waits for their copy, but not for work that was queued after it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors
