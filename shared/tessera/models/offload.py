"""Weights that stay in the host's memory and are copied to the device when they are used.

The blocks of a transformer are prefetched one block ahead into one of two slots on the device, over a CUDA stream of
their own, so that on a GPU the copy overlaps with the block that computes. Components that are used once per clip
(`OnDemandComponents`) are copied for a call and dropped after it. A weight that is not on the device is an empty
tensor of that device: reading its device or dtype gives the right answer, and computing with it raises an error. Does
not decide which modules stay on the device: `tessera.diffusion.loading.offload_plan` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

DEVICE_SLOTS = 2
"""Blocks that are on the device at once: the one that computes and the next one."""
TENSOR_ALIGNMENT_BYTES = 256
"""Bytes: where a tensor in a slot may begin."""


def tensors_of(module: nn.Module, *, buffers: bool = True) -> list[torch.Tensor]:
    """A module's weights, each once: parameters, buffers, and what packed weights (dataclasses) hold."""
    found: dict[int, torch.Tensor] = {}
    for part in module.modules():
        held: list[Any] = [*part.parameters(recurse=False)]
        if buffers:
            held += part.buffers(recurse=False)
            held += [
                getattr(value, name.name)
                for value in vars(part).values()
                if dataclasses.is_dataclass(value) and not isinstance(value, type)
                for name in dataclasses.fields(value)
            ]
        found.update({id(one): one for one in held if isinstance(one, torch.Tensor) and one.numel()})
    return list(found.values())


class OnDemandComponents:
    """Components that come for each of their calls, one of them at a time.

    Args:
        place: the device.
    """

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self._lock = threading.RLock()

    def add(self, component: nn.Module, methods: Sequence[str]) -> None:
        """Let a component's weights come while one of `methods` runs. Its buffers stay: pipelines read them."""
        for buffer in component.buffers():
            buffer.data = buffer.data.to(self.place)
        weights = tensors_of(component, buffers=False)
        kept = [weight.data for weight in weights]
        for weight in weights:
            weight.data = _away(weight, self.place)
        for name in methods:
            setattr(component, name, self._visiting(getattr(component, name), weights, kept))

    def _visiting(
        self, method: Callable[..., Any], weights: list[torch.Tensor], kept: list[torch.Tensor]
    ) -> Callable[..., Any]:
        @functools.wraps(method)
        def visit(*args: Any, **kwargs: Any) -> Any:
            with self._lock, self._here(weights, kept):
                return method(*args, **kwargs)

        return visit

    @contextlib.contextmanager
    def _here(self, weights: list[torch.Tensor], kept: list[torch.Tensor]) -> Iterator[None]:
        if not weights or weights[0].numel():  # called by one of its own methods
            yield
            return
        try:
            with torch.inference_mode(mode=False):
                for weight, value in zip(weights, kept, strict=True):
                    weight.data = value.to(self.place, copy=True, non_blocking=True)
            yield
        finally:
            for weight in weights:
                weight.data = _away(weight, self.place)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Of a tensor in the bytes of a block."""

    start: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int) -> _Place:
        """As it lies, which for a packed weight may be transposed."""
        span = 1 + sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True))
        dense = tensor if span == tensor.numel() else torch.empty(tensor.shape, device="meta")
        return cls(start, tensor.dtype, tensor.shape, dense.stride())

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor there."""
        end = self.start + self.shape.numel() * self.dtype.itemsize
        return memory[self.start : end].view(self.dtype).as_strided(self.shape, self.stride)


@dataclasses.dataclass
class _Slot:
    """Room on the device for one block's weights."""

    memory: torch.Tensor
    block: int | None = None
    arrived: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


@dataclasses.dataclass
class _Block:
    """A block that comes: its tensors, and where each lies in the block's bytes."""

    tensors: list[torch.Tensor]
    places: list[_Place]
    kept: torch.Tensor
    following: int
    views: dict[int, list[torch.Tensor]] = dataclasses.field(default_factory=dict)


class StreamedBlocks:
    """Blocks that come one ahead of their turn. One thread computes with them.

    Args:
        place: the device.
    """

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.fetched = 0
        """Blocks that have come so far."""
        self._blocks: list[_Block] = []
        self._slots: list[_Slot] = []
        self._way = torch.cuda.Stream(place) if place.type == "cuda" else None  # type: ignore[no-untyped-call]

    def add(self, block: nn.Module, number: int, ring: int) -> None:
        """Let a block come; its weights go to the host. Before the first pass.

        Args:
            block: on the device.
            number: which of a transformer's blocks that come it is.
            ring: how many these are; after the last the first comes again.
        """
        own = len(self._blocks)
        packed = self._packed(block, own + 1 if number + 1 < ring else own + 1 - ring)
        self._blocks.append(packed)
        block.register_forward_pre_hook(functools.partial(self._before, own))
        # Also where the block fails: its slot is free then, too.
        block.register_forward_hook(functools.partial(self._after, own), always_call=True)
        if not self._slots or self._slots[0].memory.nbytes < packed.kept.nbytes:
            self._slots = []
            for _ in range(DEVICE_SLOTS):
                self._slots.append(_Slot(torch.empty_like(packed.kept, device=self.place, pin_memory=False)))

    def _packed(self, block: nn.Module, following: int) -> _Block:
        tensors = tensors_of(block)
        places, size = [], 0
        for tensor in tensors:
            places.append(_Place.of(tensor, size))
            size += -(-tensor.nbytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
        kept = torch.empty(size, dtype=torch.uint8, pin_memory=self._way is not None)
        for tensor, place in zip(tensors, places, strict=True):
            place.within(kept).copy_(tensor.data)
            tensor.data = _away(tensor, self.place)
        return _Block(tensors, places, kept, following)

    def _before(self, index: int, _module: nn.Module, _arguments: Any) -> None:
        block = self._blocks[index]
        here = next((number for number, slot in enumerate(self._slots) if slot.block == index), 0)
        slot = self._slots[here]
        if slot.block != index:
            self._fetch(index, slot)
        if slot.arrived is not None:
            torch.cuda.current_stream(self.place).wait_event(slot.arrived)
        if here not in block.views:
            with torch.inference_mode(mode=False):
                block.views[here] = [place.within(slot.memory) for place in block.places]
        for tensor, view in zip(block.tensors, block.views[here], strict=True):
            tensor.data = view
        other = self._slots[1 - here]
        if other.block != block.following != index:
            self._fetch(block.following, other)

    def _after(self, index: int, _module: nn.Module, _arguments: Any, _result: Any) -> None:
        for tensor in self._blocks[index].tensors:
            tensor.data = _away(tensor, self.place)
        if self._way is not None:
            slot = next(slot for slot in self._slots if slot.block == index)
            slot.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            slot.done.record(torch.cuda.current_stream(self.place))

    def _fetch(self, index: int, slot: _Slot) -> None:
        kept = self._blocks[index].kept
        slot.block = index
        self.fetched += 1
        room = slot.memory[: kept.nbytes]
        if self._way is None:
            room.copy_(kept)
            return
        with torch.cuda.stream(self._way):
            if slot.done is not None:
                self._way.wait_event(slot.done)
            room.copy_(kept, non_blocking=True)
            slot.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            slot.arrived.record(self._way)


def _away(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.empty(0, dtype=tensor.dtype, device=place)
