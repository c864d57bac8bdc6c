"""Low-rank adapters (LoRA, Hu et al. 2021) of a model's linear layers, applied only in passes that ask for them.

The model's weights are never changed, so a request's adapters end with its pass. All rows of a pass have the same
adapters; whoever makes batches ensures that. Does not read files: `tessera.diffusion.loading.lora_files` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Mix = tuple[tuple[str, float], ...]
"""Names of adapters with their weights, sorted, so that requests with equal mixes can share a pass."""


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a layer's output: `scale * (x @ down.T @ up.T + bias)`.

    Attributes:
        down_RI: [rank, inputs].
        up_OR: [outputs, rank].
        bias_O: [outputs], or None.
        scale: the adapter's alpha divided by its rank.
    """

    down_RI: torch.Tensor
    up_OR: torch.Tensor
    bias_O: torch.Tensor | None
    scale: float

    def delta(self, input_BI: torch.Tensor, weight: float) -> torch.Tensor:
        """The term [..., outputs] to add for the layer's input, at a request's weight."""
        low = nn.functional.linear(input_BI.to(self.down_RI.dtype), self.down_RI)
        return nn.functional.linear(low, self.up_OR, self.bias_O) * (self.scale * weight)


class Adapters:
    """All adapters of a model. `running` and the passes inside it belong to one thread.

    Attributes:
        digests: checksum of the file or files that each adapter was read from, by its name.
    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self._layers: dict[nn.Module, dict[str, LowRank]] = {}
        self._running: Mix = ()

    @property
    def names(self) -> list[str]:
        """Names of the adapters that a request can ask for, sorted."""
        return sorted(self.digests)

    @property
    def mix(self) -> Mix:
        """The adapters of the pass that runs now; empty between passes."""
        return self._running

    def add(self, name: str, digest: str, layers: Mapping[nn.Module, LowRank]) -> None:
        """Add an adapter before the first pass. A second call with the same name adds the layers of another expert."""
        self.digests[name] = self.digests.get(name, "") + digest
        for layer, low_rank in layers.items():
            if layer not in self._layers:
                self._layers[layer] = {}
                layer.register_forward_hook(self._adapted, with_kwargs=True)
            self._layers[layer][name] = low_rank

    def unknown(self, mix: Mix) -> Sequence[str]:
        """Names in a request's mix that no adapter has."""
        return [name for name, _ in mix if name not in self.digests]

    @contextlib.contextmanager
    def running(self, mix: Mix) -> Iterator[None]:
        """Context of one pass, in which the adapters of `mix` are applied."""
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
                output = output + low_rank.delta(given, weight).to(output.dtype)
        return output
