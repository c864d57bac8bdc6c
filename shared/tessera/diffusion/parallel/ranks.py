"""Processes, one a device, that share every pass of a video model: the first says what is computed, all compute it.

What is said goes over a process group on this machine's loopback: a MessagePack header, then the tensors; nothing is
pickled. How a pass is divided is Diffusers' context parallelism (`tessera.diffusion.parallel.context`). Does not know
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

PATIENCE = timedelta(days=7)
"""That others wait for the next pass: a service may be idle. Who watches over the processes ends those left alone."""


class PassMessage(msgspec.Struct, array_like=True, tag=True):
    """What is computed next: one of the model's transformers, what it is given, and the adapters that it has then."""

    expert: int
    mix: Mix
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape by the name of the argument, in the order in which they follow."""
    others: dict[str, Any]


class StopMessage(msgspec.Struct, array_like=True, tag=True):
    """Nothing more will be computed."""


_decoder = msgspec.msgpack.Decoder(PassMessage | StopMessage)


class Ranks:
    """This process' place among those that share passes.

    Args:
        rank: 0 leads.
        count: of processes.
        meeting: a file that nobody else uses, where they find each other. Blocks until all are there.
        place: this one's device.
    """

    def __init__(self, rank: int, count: int, meeting: Path, place: torch.device) -> None:
        self.rank, self.count, self.place = rank, count, place
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        store = distributed.FileStore(str(meeting), count)  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)

    def send(self, message: PassMessage | StopMessage, tensors: dict[str, torch.Tensor]) -> None:
        """Say what comes next; of the leader."""
        body = torch.frombuffer(bytearray(msgspec.msgpack.encode(message)), dtype=torch.uint8)
        distributed.broadcast(torch.tensor([len(body)]), 0)
        distributed.broadcast(body, 0)
        for tensor in tensors.values():
            distributed.broadcast(tensor, 0)

    def receive(self) -> tuple[PassMessage, dict[str, torch.Tensor]] | None:
        """What comes next; None when nothing does. Of those that follow."""
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
        """Leave."""
        distributed.destroy_process_group()


def lead(model: FamilyModel, ranks: Ranks) -> Callable[[], None]:
    """Let every pass of a model be computed by all ranks; its transformers are divided already.

    Returns:
        What ends that, after the last pass.
    """
    for number, expert in enumerate(model.expert_components()):
        expert.forward = functools.partial(_led, model, ranks, number, expert.forward)

    def end() -> None:
        ranks.send(StopMessage(), {})
        ranks.close()

    return end


def _led(model: FamilyModel, ranks: Ranks, number: int, forward: Callable[..., Any], **given: Any) -> Any:
    tensors = {name: value.contiguous() for name, value in given.items() if isinstance(value, torch.Tensor)}
    described = {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in tensors.items()}
    others = {name: value for name, value in given.items() if name not in tensors}
    ranks.send(PassMessage(number, model.adapters.mix, described, others), tensors)
    return forward(**{**others, **tensors})


@torch.inference_mode()
def follow(model: FamilyModel, ranks: Ranks) -> None:
    """Compute this rank's part of every pass until there are no more."""
    experts = model.expert_components()
    while (received := ranks.receive()) is not None:
        message, tensors = received
        with model.adapters.running(message.mix):
            experts[message.expert](**message.others, **tensors)
    ranks.close()
