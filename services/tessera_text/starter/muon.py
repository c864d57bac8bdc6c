"""Muon: an optimizer with orthogonalized updates, which trains small transformers in about half of AdamW's steps.

Source: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). Unlike torch's, this one
takes stacks of matrices (experts), and all matrices of one shape at once. Knows nothing about the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """The optimizer Muon.

    Args:
        parameters: matrices, or stacks of matrices with the stack's dimension first; no embeddings, no vectors.
        learning_rate: spectral norm of an update.
        momentum: coefficient of Nesterov momentum, 0 to 1.
        weight_decay: decoupled weight decay, which is multiplied by the learning rate.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        learning_rate: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one update. Closures are refused."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape[-2:]].append(parameter)
            for parameters in shapes.values():
                self._update(parameters, group)
        return None

    def _update(self, parameters: list[torch.nn.Parameter], group: dict[str, Any]) -> None:
        steps = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            steps.append(parameter.grad.lerp(state["momentum"], group["momentum"]).reshape(-1, *parameter.shape[-2:]))
        rows, columns = parameters[0].shape[-2:]
        scale: float = max(1.0, rows / columns) ** 0.5
        counts = [len(step) for step in steps]
        for parameter, step in zip(parameters, torch.split(orthogonal(torch.cat(steps)), counts), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(step.view_as(parameter).to(parameter.dtype), alpha=-group["lr"] * scale)


def orthogonal(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """Matrices with about the same singular vectors as the given ones, and singular values near one.

    Computed by Newton-Schulz iterations in bfloat16.
    """
    a, b, c = _COEFFICIENTS
    flat = matrices_NRC.shape[-2] > matrices_NRC.shape[-1]
    x: torch.Tensor = (matrices_NRC.mT if flat else matrices_NRC).to(torch.bfloat16)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        products = x @ x.mT
        x = a * x + (b * products + c * products @ products) @ x
    return x.mT if flat else x
