"""Random numbers of one request, independent of everything else in the process.

VITS and Transformers' sampling draw from PyTorch's global generators and take no other. So a request keeps a state of
those generators of its own: the state is set before a unit of work and saved after it, and the state of the process is
restored. Knows nothing about what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomStream:
    """The state of the global generators for one request, as if it ran alone after `torch.manual_seed(seed)`.

    Args:
        seed: 0 to 2**63 - 1.
        device: device whose generator is saved beside the CPU's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._states: tuple[torch.Tensor, torch.Tensor | None] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draws inside continue where those of the last block ended."""
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
