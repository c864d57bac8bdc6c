"""Low-rank adapters (LoRA, Hu et al. 2021) of a model's linear layers, added while a pass runs that asks for them.

Weights of the model are never changed, so a request's adapters are gone when its pass is. All rows of a pass have the
same ones: whoever makes batches sees to it. Does not know files (`tessera.diffusion.loading.lora_files`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Mix = tuple[tuple[str, float], ...]
"""Names of adapters with their weights, sorted: equal ones can share a pass."""


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a layer: `scale * (x @ down.T @ up.T + bias)`."""

    down_RI: torch.Tensor
    """[rank, in]."""
    up_OR: torch.Tensor
    """[out, rank]."""
    bias_O: torch.Tensor | None
    scale: float
    """Alpha over rank."""

    def added(self, input_BI: torch.Tensor, weight: float) -> torch.Tensor:
        """[..., out]: to the layer's output, at a request's weight."""
        low = nn.functional.linear(input_BI.to(self.down_RI.dtype), self.down_RI)
        return nn.functional.linear(low, self.up_OR, self.bias_O) * (self.scale * weight)


class Adapters:
    """All adapters of a model. `running` and the passes in it are of one thread."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        """What each was read from, by name."""
        self._layers: dict[nn.Module, dict[str, LowRank]] = {}
        self._running: Mix = ()

    @property
    def names(self) -> list[str]:
        """Of those that a request can ask for."""
        return sorted(self.digests)

    @property
    def mix(self) -> Mix:
        """What is added in the pass that runs."""
        return self._running

    def add(self, name: str, digest: str, layers: Mapping[nn.Module, LowRank]) -> None:
        """Make one known; before the first pass. A second time, for layers of another expert."""
        self.digests[name] = self.digests.get(name, "") + digest
        for layer, low_rank in layers.items():
            if layer not in self._layers:
                self._layers[layer] = {}
                layer.register_forward_hook(self._adapted, with_kwargs=True)
            self._layers[layer][name] = low_rank

    def unknown(self, mix: Mix) -> Sequence[str]:
        """Those of a request that are not there."""
        return [name for name, _ in mix if name not in self.digests]

    @contextlib.contextmanager
    def running(self, mix: Mix) -> Iterator[None]:
        """During one pass: what is added."""
        self._running = mix
        try:
            yield
        finally:
            self._running = ()

    def _adapted(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        for name, weight in self._running:
            low_rank = self._layers[layer].get(name)
            if low_rank is not None:
                given = args[0] if args else kwargs["input"]
                output = output + low_rank.added(given, weight).to(output.dtype)
        return output
