"""What of a pipeline's weights is on its device all the time, and what comes when it is used: decided before loading.

From the headers of the weight files alone. In this order, the first that fits: everything stays; text and image
encoders and the VAE come for a call each; blocks of transformers come one ahead of their turn, as few as must. Does not
move anything: see `tessera.models.offload`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tessera.diffusion.loading.transformers import QUANTIZED
from tessera.errors import ModelLoadError
from tessera.hub.cards import safetensors_header
from tessera.models.offload import DEVICE_SLOTS

OffloadMode = Literal["auto", "none", "encoders", "blocks"]
WEIGHTS_SHARE = 0.75
"""Of a device's free memory that weights may take when nobody says; clips take the rest."""
SCHEME_BYTES = {"int8": 1.02, "fp8": 1.02, "int4": 0.54, "mxfp4": 0.54, "nvfp4": 0.57}
"""Of a weight, with its share of scales."""
GIB = 1 << 30


@dataclass(frozen=True)
class WeightBytes:
    """Bytes on the device, by the names that a pipeline has for its components.

    Attributes:
        components: of everything that is no transformer.
        rest: of each transformer, what is beside its blocks.
        blocks: of each transformer, each of its blocks.
    """

    components: Mapping[str, int] = field(default_factory=dict)
    rest: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.components.values()) + sum(self.rest.values()) + sum(map(sum, self.blocks.values()))


@dataclass(frozen=True)
class OffloadPlan:
    """Where weights are.

    Attributes:
        visiting: components that come for each of their calls, one at a time.
        streamed: of each transformer, how many of its last blocks come when it is their turn.
        device_bytes: most weights that are on the device at once.
        host_bytes: weights that are kept in the host's memory.
    """

    on_demand: frozenset[str] = frozenset()
    streamed: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    host_bytes: int = 0

    @property
    def everything_stays(self) -> bool:
        """Whether there is nothing to do."""
        return not self.on_demand and not any(self.streamed.values())

    def __str__(self) -> str:
        if self.everything_stays:
            return f"all weights stay on the device ({_gib(self.device_bytes)})"
        come = [*sorted(self.on_demand), *(f"{n} blocks of {name}" for name, n in self.streamed.items() if n)]
        return f"on the device are {_gib(self.device_bytes)} of weights; {', '.join(come)} come when they are used"


def measure_weights(
    directory: Path, block_list: str, *, itemsize: int, scheme: str, missing: Collection[str] = ()
) -> WeightBytes:
    """Measure a pipeline's weight files.

    Args:
        directory: of a pipeline, a folder for each component.
        block_list: what a transformer calls its blocks.
        itemsize: bytes of a number on the device; a VAE's are float32.
        scheme: of the products in blocks, or `stored`.
        missing: components that are not loaded.

    Raises:
        ModelLoadError: a weight file is no safetensors file.
    """
    components: dict[str, int] = {}
    rest: dict[str, int] = {}
    blocks: dict[str, tuple[int, ...]] = {}
    for name in _parts(directory):
        if name in missing:
            continue
        sizes: Counter[int] = Counter()
        beside = 0
        each = 4 if name == "vae" else itemsize
        for path in _files(directory / name):
            for tensor, shape in _tensors(path):
                taken = math.prod(shape) * each
                number = _block_of(tensor, block_list) if name.startswith("transformer") else None
                if number is None:
                    beside += taken
                    continue
                if scheme != "stored" and len(shape) == 2 and tensor.split(".")[2] in QUANTIZED:
                    taken = math.ceil(math.prod(shape) * SCHEME_BYTES[scheme])
                sizes[number] += taken
        if sizes:
            rest[name], blocks[name] = beside, tuple(sizes[number] for number in sorted(sizes))
        elif beside:
            components[name] = beside
    return WeightBytes(components, rest, blocks)


def plan_offload(weights: WeightBytes, room: int, how: OffloadMode = "auto") -> OffloadPlan:
    """Where weights are to be.

    Args:
        weights: of a pipeline.
        room: bytes of the device for weights.
        how: `auto`: the first that fits. `none`: everything stays, whether it fits or not. `encoders`, `blocks`: no
            less than this is brought when it is used; `blocks` are all blocks.

    Raises:
        ModelLoadError: it does not fit, whatever comes when it is used.
    """
    if how == "none" or (how == "auto" and weights.total <= room):
        return OffloadPlan(device_bytes=weights.total)
    # One visitor at a time.
    most = max(weights.components.values(), default=0)
    held = sum(weights.rest.values()) + most
    every = {name: len(sizes) for name, sizes in weights.blocks.items()}
    # As many as fit beside the slots; those of the first transformer go first.
    counts = every if how == "blocks" else dict.fromkeys(every, 0)
    taken = held + _resident(weights, counts)
    while taken > room and counts != every:
        name = next(name for name in every if counts[name] < every[name])
        counts = {**counts, name: counts[name] + 1}
        taken = held + _resident(weights, counts)
    if taken > room:
        raise ModelLoadError(
            f"the model's weights take {_gib(weights.total)} on the device, and {_gib(taken)} when blocks come one by "
            f"one; there is room for {_gib(room)}. Weights in 8 or 4 bits (`video.weights`) take less"
        )
    kept = sum(sum(sizes[len(sizes) - counts[name] :]) for name, sizes in weights.blocks.items())
    return OffloadPlan(frozenset(weights.components), counts, taken, sum(weights.components.values()) + kept)


def _resident(weights: WeightBytes, counts: Mapping[str, int]) -> int:
    """Bytes of the blocks that stay, and of the slots for those that come."""
    stay = sum(sum(sizes[: len(sizes) - counts[name]]) for name, sizes in weights.blocks.items())
    come = [size for name, sizes in weights.blocks.items() for size in sizes[len(sizes) - counts[name] :]]
    return stay + DEVICE_SLOTS * max(come, default=0)


def _parts(directory: Path) -> list[str]:
    index: dict[str, Any] = json.loads((directory / "model_index.json").read_text(encoding="utf-8"))
    return [name for name in index if not name.startswith("_") and (directory / name).is_dir()]


def _files(folder: Path) -> list[Path]:
    """Weight files that are read: without variants (`model.fp16.safetensors`), where there are others."""
    found = sorted(folder.glob("*.safetensors"))
    return [path for path in found if "." not in path.stem] or found


def _tensors(path: Path) -> list[tuple[str, list[int]]]:
    header = safetensors_header(path)
    return [(name, tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"]


def _block_of(tensor: str, block_list: str) -> int | None:
    parts = tensor.split(".")
    return int(parts[1]) if parts[0] == block_list and len(parts) > 2 and parts[1].isdigit() else None


def _gib(count: int) -> str:
    return f"{count / GIB:,.1f} GiB"
