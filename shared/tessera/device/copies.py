"""Copies between host and device that do not wait for what is queued on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def synchronize(device: torch.device) -> None:
    """Wait for everything queued on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(values: Sequence[float], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numbers of the host as a tensor on `device`, without waiting for what is queued there."""
    made = torch.tensor(values, dtype=dtype)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


class Readback:
    """Tensors on their way to the host, behind what is queued on their device now."""

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
        """The tensors on the host; waits until they are there, but for nothing that was queued after them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors
