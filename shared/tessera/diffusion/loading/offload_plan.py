"""Plans, before loading, which weights of a pipeline stay on its device and which are copied there when they are used.

Reads only the headers of the weight files. The first of these that fits is taken:

1. everything stays on the device;
2. text encoder, image encoder and VAE are copied for each of their calls;
3. in addition, as few blocks of the transformers as necessary are prefetched one block ahead.

Does not move weights (`tessera.models.offload` does).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tessera.diffusion.loading.transformers import QUANTIZED
from tessera.errors import ModelLoadError
from tessera.hub.weight_headers import safetensors_header
from tessera.models.offload import DEVICE_SLOTS
from tessera.tokenizer.model_files import read_object

OffloadMode = Literal["auto", "none", "encoders", "blocks"]
"""Setting `video.offload`, see `plan_offload`."""
WEIGHTS_SHARE = 0.75
"""Share (0 to 1) of a device's free memory for weights when the settings name no limit; clips take the rest."""
SCHEME_BYTES = {"int8": 1.02, "fp8": 1.02, "int4": 0.54, "mxfp4": 0.54, "nvfp4": 0.57}
"""Bytes per weight of each scheme, its share of the scales included."""
GIB = 1 << 30
"""Bytes in a GiB."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes that weights take on the device, by the pipeline's names of its components.

    Attributes:
        components: bytes of each component that is no transformer.
        rest: bytes of each transformer outside its blocks.
        blocks: bytes of each block of each transformer.
    """

    components: Mapping[str, int] = field(default_factory=dict)
    rest: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes of all weights."""
        return sum(self.components.values()) + sum(self.rest.values()) + sum(map(sum, self.blocks.values()))


@dataclass(frozen=True)
class OffloadPlan:
    """A placement of a pipeline's weights.

    Attributes:
        on_demand: components that are copied to the device for each of their calls, one at a time.
        streamed: for each transformer, the number of its last blocks that are copied when it is their turn.
        device_bytes: most bytes of weights that are on the device at once.
        host_bytes: bytes of weights that are kept in the host's memory.
    """

    on_demand: frozenset[str] = frozenset()
    streamed: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    host_bytes: int = 0

    @property
    def everything_stays(self) -> bool:
        """Whether all weights stay on the device."""
        return not self.on_demand and not any(self.streamed.values())

    def __str__(self) -> str:
        if self.everything_stays:
            return f"all weights stay on the device ({_gib(self.device_bytes)})"
        copied = [*sorted(self.on_demand), *(f"{n} blocks of {name}" for name, n in self.streamed.items() if n)]
        return f"on the device are {_gib(self.device_bytes)} of weights; {', '.join(copied)} come when they are used"


def measure_weights(
    directory: Path, block_list: str, *, itemsize: int, scheme: str, missing: Collection[str] = ()
) -> WeightBytes:
    """Measure a pipeline's weight files.

    Args:
        directory: the pipeline's directory, with a folder for each component.
        block_list: name of the attribute that holds a transformer's blocks.
        itemsize: bytes of an element on the device; a VAE's elements are float32 in any case.
        scheme: scheme of the products in blocks, or `stored`.
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


def plan_offload(weights: WeightBytes, budget: int, how: OffloadMode = "auto") -> OffloadPlan:
    """Plan where weights are kept.

    Args:
        weights: sizes of a pipeline's weights.
        budget: bytes of the device that weights may take.
        how: `auto` takes the first plan that fits. `none` keeps everything on the device, whether it fits or not.
            `encoders` copies at least the encoders and the VAE when they are used, `blocks` all blocks as well.

    Raises:
        ModelLoadError: the weights do not fit even when everything is copied on demand.
    """
    if how == "none" or (how == "auto" and weights.total <= budget):
        return OffloadPlan(device_bytes=weights.total)
    # Only one component on demand is on the device at a time.
    most = max(weights.components.values(), default=0)
    held = sum(weights.rest.values()) + most
    every = {name: len(sizes) for name, sizes in weights.blocks.items()}
    # As few blocks as possible are streamed; those of the first transformer first.
    counts = every if how == "blocks" else dict.fromkeys(every, 0)
    taken = held + _resident(weights, counts)
    while taken > budget and counts != every:
        name = next(name for name in every if counts[name] < every[name])
        counts = {**counts, name: counts[name] + 1}
        taken = held + _resident(weights, counts)
    if taken > budget:
        raise ModelLoadError(
            f"the model's weights take {_gib(weights.total)} on the device, and {_gib(taken)} when blocks come one by "
            f"one; there is room for {_gib(budget)}. Weights in 8 or 4 bits (`video.weights`) take less"
        )
    kept = sum(sum(sizes[len(sizes) - counts[name] :]) for name, sizes in weights.blocks.items())
    return OffloadPlan(frozenset(weights.components), counts, taken, sum(weights.components.values()) + kept)


def _resident(weights: WeightBytes, counts: Mapping[str, int]) -> int:
    """Return the bytes of the blocks that stay, and of the slots for those that are streamed."""
    stay = sum(sum(sizes[: len(sizes) - counts[name]]) for name, sizes in weights.blocks.items())
    come = [size for name, sizes in weights.blocks.items() for size in sizes[len(sizes) - counts[name] :]]
    return stay + DEVICE_SLOTS * max(come, default=0)


def _parts(directory: Path) -> list[str]:
    index = read_object(directory / "model_index.json")
    return [name for name in index if not name.startswith("_") and (directory / name).is_dir()]


def _files(folder: Path) -> list[Path]:
    """Return the weight files that are loaded: variants (`model.fp16.safetensors`) only when there are no others."""
    found = sorted(folder.glob("*.safetensors"))
    return [path for path in found if "." not in path.stem] or found


def _tensors(path: Path) -> list[tuple[str, list[int]]]:
    return [(name, tensor.shape) for name, tensor in safetensors_header(path).items()]


def _block_of(tensor: str, block_list: str) -> int | None:
    parts = tensor.split(".")
    return int(parts[1]) if parts[0] == block_list and len(parts) > 2 and parts[1].isdigit() else None


def _gib(count: int) -> str:
    return f"{count / GIB:,.1f} GiB"
