"""Random numbers that belong to one request, whatever else runs in the process.

VITS and Transformers' sampling draw from PyTorch's global generators and take no other. So a request keeps the state of
those generators as its own: it is put in place for a unit of work, taken out after it, and the process's own state is
restored. Does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomStream:
    """The global generators as they are for one request, as if it ran alone after `torch.manual_seed(seed)`.

    Args:
        seed: 0 to 2**63 - 1.
        device: whose generator is kept beside the CPU's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._states: tuple[torch.Tensor, torch.Tensor | None] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draws inside continue where those of the last time ended."""
        on_gpu = self._device.type == "cuda"
        with torch.random.fork_rng(devices=[self._device] if on_gpu else []):
            if self._states is None:
                torch.manual_seed(self._seed)
            else:
                torch.set_rng_state(self._states[0])
                if self._states[1] is not None:
                    torch.cuda.set_rng_state(self._states[1], self._device)
            yield
            self._states = (torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if on_gpu else None)
