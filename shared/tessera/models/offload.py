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
"""Number of blocks on the device at once: the one that computes, and the one that is prefetched."""
TENSOR_ALIGNMENT_BYTES = 256
"""Alignment of the tensors in a slot, in bytes."""


def tensors_of(module: nn.Module, *, buffers: bool = True) -> list[torch.Tensor]:
    """A module's weights, each once: parameters, buffers, and the tensors in packed weights, which are dataclasses."""
    tensors: dict[int, torch.Tensor] = {}
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
        tensors.update({id(one): one for one in held if isinstance(one, torch.Tensor) and one.numel()})
    return list(tensors.values())


class OnDemandComponents:
    """Components whose weights are copied to the device for each of their calls, one component at a time.

    Args:
        place: the device.
    """

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self._lock = threading.RLock()

    def add(self, component: nn.Module, methods: Sequence[str]) -> None:
        """Have a component's weights on the device only while one of `methods` runs.

        Its buffers stay on the device, because pipelines read them.
        """
        for buffer in component.buffers():
            buffer.data = buffer.data.to(self.place)
        weights = tensors_of(component, buffers=False)
        host_values = [weight.data for weight in weights]
        for weight in weights:
            weight.data = _emptied(weight, self.place)
        for name in methods:
            setattr(component, name, self._with_weights(getattr(component, name), weights, host_values))

    def _with_weights(
        self, method: Callable[..., Any], weights: list[torch.Tensor], host_values: list[torch.Tensor]
    ) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock, self._on_device(weights, host_values):
                return method(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _on_device(self, weights: list[torch.Tensor], host_values: list[torch.Tensor]) -> Iterator[None]:
        if not weights or weights[0].numel():  # called by another of its methods
            yield
            return
        try:
            with torch.inference_mode(mode=False):
                for weight, value in zip(weights, host_values, strict=True):
                    weight.data = value.to(self.place, copy=True, non_blocking=True)
            yield
        finally:
            for weight in weights:
                weight.data = _emptied(weight, self.place)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where a tensor lies in the bytes of a block.

    Attributes:
        start: first byte.
        dtype: of the tensor.
        shape: of the tensor.
        stride: of the tensor, in elements.
    """

    start: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int) -> _Layout:
        """The layout of a tensor that begins at `start`. Strides are kept: a packed weight may be transposed."""
        span = 1 + sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True))
        dense = tensor if span == tensor.numel() else torch.empty(tensor.shape, device="meta")
        return cls(start, tensor.dtype, tensor.shape, dense.stride())

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """A view of the tensor in a block's bytes."""
        end = self.start + self.shape.numel() * self.dtype.itemsize
        return memory[self.start : end].view(self.dtype).as_strided(self.shape, self.stride)


@dataclasses.dataclass
class _Slot:
    """Device memory for one block's weights.

    Attributes:
        memory: uint8, as large as the largest block.
        block: index of the block whose weights it holds; None at first.
        arrived: recorded behind the copy of the weights; None on a CPU.
        done: recorded when the block has computed; None on a CPU.
    """

    memory: torch.Tensor
    block: int | None = None
    arrived: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


@dataclasses.dataclass
class _Block:
    """A block whose weights are streamed.

    Attributes:
        tensors: its weights.
        layouts: where each of them lies in the block's bytes.
        host_bytes: the bytes on the host, uint8; pinned on a GPU.
        following: index of the block that runs next.
        views: the weights in each slot that the block has been in, by the slot's index.
    """

    tensors: list[torch.Tensor]
    layouts: list[_Layout]
    host_bytes: torch.Tensor
    following: int
    views: dict[int, list[torch.Tensor]] = dataclasses.field(default_factory=dict)


class StreamedBlocks:
    """Blocks whose weights are prefetched one block ahead. Only one thread may compute with them.

    Args:
        place: the device.

    Attributes:
        fetched: number of blocks that have been copied to the device so far.
    """

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.fetched = 0
        self._blocks: list[_Block] = []
        self._slots: list[_Slot] = []
        self._copy_stream = torch.cuda.Stream(place) if place.type == "cuda" else None  # type: ignore[no-untyped-call]

    def add(self, block: nn.Module, number: int, ring: int) -> None:
        """Move a block's weights to the host and stream them from now on. Called before the first pass.

        Args:
            block: on the device.
            number: its index among the transformer's streamed blocks.
            ring: how many streamed blocks the transformer has; the first follows the last.
        """
        own = len(self._blocks)
        packed = self._packed(block, own + 1 if number + 1 < ring else own + 1 - ring)
        self._blocks.append(packed)
        block.register_forward_pre_hook(functools.partial(self._before, own))
        # Also called when the block fails, so that its slot becomes free.
        block.register_forward_hook(functools.partial(self._after, own), always_call=True)
        if not self._slots or self._slots[0].memory.nbytes < packed.host_bytes.nbytes:
            self._slots = []
            for _ in range(DEVICE_SLOTS):
                self._slots.append(_Slot(torch.empty_like(packed.host_bytes, device=self.place, pin_memory=False)))

    def _packed(self, block: nn.Module, following: int) -> _Block:
        tensors = tensors_of(block)
        layouts, size = [], 0
        for tensor in tensors:
            layouts.append(_Layout.of(tensor, size))
            size += -(-tensor.nbytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
        host_bytes = torch.empty(size, dtype=torch.uint8, pin_memory=self._copy_stream is not None)
        for tensor, layout in zip(tensors, layouts, strict=True):
            layout.within(host_bytes).copy_(tensor.data)
            tensor.data = _emptied(tensor, self.place)
        return _Block(tensors, layouts, host_bytes, following)

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
                block.views[here] = [layout.within(slot.memory) for layout in block.layouts]
        for tensor, view in zip(block.tensors, block.views[here], strict=True):
            tensor.data = view
        other = self._slots[1 - here]
        if other.block != block.following != index:
            self._fetch(block.following, other)

    def _after(self, index: int, _module: nn.Module, _arguments: Any, _result: Any) -> None:
        for tensor in self._blocks[index].tensors:
            tensor.data = _emptied(tensor, self.place)
        if self._copy_stream is not None:
            slot = next(slot for slot in self._slots if slot.block == index)
            slot.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            slot.done.record(torch.cuda.current_stream(self.place))

    def _fetch(self, index: int, slot: _Slot) -> None:
        host_bytes = self._blocks[index].host_bytes
        slot.block = index
        self.fetched += 1
        room = slot.memory[: host_bytes.nbytes]
        if self._copy_stream is None:
            room.copy_(host_bytes)
            return
        with torch.cuda.stream(self._copy_stream):
            if slot.done is not None:
                self._copy_stream.wait_event(slot.done)
            room.copy_(host_bytes, non_blocking=True)
            slot.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            slot.arrived.record(self._copy_stream)


def _emptied(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.empty(0, dtype=tensor.dtype, device=place)
