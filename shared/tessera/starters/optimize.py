"""Optimization for recipes: AdamW, a learning rate schedule, autocast to bfloat16, a moving average of weights.

Nothing here counts steps: everything follows from the number of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn


def adamw(
    modules: Iterable[nn.Module],
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.98),
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) with weight decay on matrices, and none on vectors (norms, biases)."""
    parameters = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, betas=betas)


def cosine(index: int, steps: int, peak: float, *, warmup: int = 100, floor: float = 0.02) -> float:
    """Learning rate of a step: a linear warm-up, then half a cosine down to `floor` times the peak."""
    if index < warmup:
        return peak * (index + 1) / warmup
    done = (index - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups to `value`."""
    for group in optimizer.param_groups:
        group["lr"] = value


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """A context in which matrix products run in bfloat16 where the device has instructions for it, else in float32."""
    if device.type == "cuda" or torch.cpu._is_avx512_bf16_supported():
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def generator(*numbers: int) -> np.random.Generator:
    """A random generator that depends on `numbers` alone, such as a seed and the number of a step."""
    return np.random.default_rng(numbers)


class Average(nn.Module):
    """Exponential moving average of a module's weights (Polyak & Juditsky 1992), a module that checkpoints can hold.

    Args:
        module: the module whose weights are averaged.
        decay: share of the old average that one update keeps, below 1; it rises from 0 during the first updates.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.updates: torch.Tensor
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._names: dict[str, str] = {}
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                self._names[name] = name.replace(".", "/")
                self.register_buffer(self._names[name], value.detach().clone())

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Update the average with the present weights of `module`."""
        self.updates.add_(1)
        updates = int(self.updates)
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for name, value in module.state_dict().items():
            if name in self._names:
                self.get_buffer(self._names[name]).lerp_(value.detach().to(torch.float32), 1 - decay)

    def copy_to(self, module: nn.Module) -> None:
        """Copy the averaged weights into `module`."""
        averaged = {name: self.get_buffer(place) for name, place in self._names.items()}
        module.load_state_dict({**module.state_dict(), **averaged})
