"""Ranks, one process per device, that compute every pass of a video model together: rank 0 leads, the others follow.

Rank 0 broadcasts each pass over a process group on this machine's loopback: a MessagePack header, then the tensors;
nothing is pickled. Diffusers' context parallelism divides the pass (`tessera.diffusion.parallel.context`). Knows no
jobs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed

from tessera.diffusion.families.base import FamilyModel
from tessera.models.lora import Mix

IDLE_TIMEOUT = timedelta(days=7)
"""Time that ranks wait for the next pass: a service may be idle for days. Ranks end with the worker in any case."""


class PassMessage(msgspec.Struct, array_like=True, tag=True):
    """The next pass: which transformer, with which adapters and arguments."""

    expert: int
    """Index of the transformer in `FamilyModel.expert_components`."""
    mix: Mix
    """Adapters that are active during the pass, with their weights."""
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape of each tensor by the name of its argument, in the order in which the tensors are sent."""
    others: dict[str, Any]
    """Arguments that are no tensors, by name."""


class StopMessage(msgspec.Struct, array_like=True, tag=True):
    """The end: no further pass will be sent."""


_decoder = msgspec.msgpack.Decoder(PassMessage | StopMessage)


class Ranks:
    """This process as one of the ranks that share passes. Blocks until all ranks have joined.

    Args:
        rank: 0 to `count` - 1; 0 leads.
        count: number of ranks.
        rendezvous: a file that only these ranks use, through which they find each other.
        place: this rank's device.
    """

    def __init__(self, rank: int, count: int, rendezvous: Path, place: torch.device) -> None:
        self.rank, self.count, self.place = rank, count, place
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        store = distributed.FileStore(str(rendezvous), count)  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=IDLE_TIMEOUT)

    def send(self, message: PassMessage | StopMessage, tensors: dict[str, torch.Tensor]) -> None:
        """Broadcast a message and its tensors. Only rank 0 calls this."""
        body = torch.frombuffer(bytearray(msgspec.msgpack.encode(message)), dtype=torch.uint8)
        distributed.broadcast(torch.tensor([len(body)]), 0)
        distributed.broadcast(body, 0)
        for tensor in tensors.values():
            distributed.broadcast(tensor, 0)

    def receive(self) -> tuple[PassMessage, dict[str, torch.Tensor]] | None:
        """Wait for the next pass and return it with its tensors; None at the end. All ranks but 0 call this."""
        size = torch.zeros(1, dtype=torch.int64)
        distributed.broadcast(size, 0)
        body = torch.empty(int(size), dtype=torch.uint8)
        distributed.broadcast(body, 0)
        message = _decoder.decode(body.numpy().tobytes())
        if isinstance(message, StopMessage):
            return None
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype), device=self.place)
            for name, (dtype, shape) in message.tensors.items()
        }
        for tensor in tensors.values():
            distributed.broadcast(tensor, 0)
        return message, tensors

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()


def lead(model: FamilyModel, ranks: Ranks) -> Callable[[], None]:
    """Let all ranks compute every pass of a model whose transformers are divided already.

    Returns:
        A function that ends the other ranks; to be called after the last pass.
    """
    for number, expert in enumerate(model.expert_components()):
        expert.forward = functools.partial(_forward_on_all_ranks, model, ranks, number, expert.forward)

    def end() -> None:
        ranks.send(StopMessage(), {})
        ranks.close()

    return end


def _forward_on_all_ranks(
    model: FamilyModel, ranks: Ranks, number: int, forward: Callable[..., Any], **given: Any
) -> Any:
    tensors = {name: value.contiguous() for name, value in given.items() if isinstance(value, torch.Tensor)}
    described = {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in tensors.items()}
    others = {name: value for name, value in given.items() if name not in tensors}
    ranks.send(PassMessage(number, model.adapters.mix, described, others), tensors)
    return forward(**{**others, **tensors})


@torch.inference_mode()
def follow(model: FamilyModel, ranks: Ranks) -> None:
    """Compute this rank's part of every pass until rank 0 ends."""
    experts = model.expert_components()
    while (received := ranks.receive()) is not None:
        message, tensors = received
        with model.adapters.running(message.mix):
            experts[message.expert](**message.others, **tensors)
    ranks.close()
