"""Data-parallel training: each process computes its share of a batch, and gradients are summed.

On a CPU, one process a core with one thread each is faster than one process with a thread for each core, because small
operations gain little from threads. Each process keeps all weights and updates them in the same way. From time to time
all take the weights of rank 0, so that differences in the last bits do not add up. Knows neither stages nor recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from tessera.errors import StartError

ALIGN_EVERY = 20
"""Steps after which all ranks take the weights of rank 0."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest time to wait for other ranks."""


class PeerLostError(StartError):
    """Another process of the training has ended."""


class DataParallelGroup:
    """This process' membership in a group of processes that train together; alone until `join` is called.

    Attributes:
        rank: rank of this process, 0 to `count` - 1; rank 0 writes files and reports.
        count: number of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._group: Any = None

    @property
    def first(self) -> bool:
        """Whether this process has rank 0, which writes files."""
        return self.rank == 0

    def join(self, rendezvous: Path) -> None:
        """Connect to the other ranks. Blocks until all have called this.

        Args:
            rendezvous: path of a file that the ranks of this training alone use.
        """
        tools: Any = distributed  # whose stubs leave most of it out
        gloo = tools.ProcessGroupGloo
        options = gloo._Options()
        # The loopback interface alone: nobody else may read gradients.
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = COLLECTIVE_TIMEOUT
        store = tools.FileStore(str(rendezvous), self.count)
        self._group = gloo(store, self.rank, self.count, options)

    def leave(self) -> None:
        """Disconnect; ranks that still wait for this one get an error."""
        self._group = None

    def own_items(self, items: int) -> slice:
        """The items of a batch that this rank computes. Lower ranks may have one more; some may have none."""
        return slice(-(-items * self.rank // self.count), -(-items * (self.rank + 1) // self.count))

    def own_share(self, items: int) -> float:
        """This rank's share of a batch of `items` items, 0 to 1."""
        return len(range(items)[self.own_items(items)]) / items

    def sum_gradients(self, parameters: Iterable[nn.Parameter], share: float) -> None:
        """Replace the gradients at every rank by those of the whole batch.

        Args:
            parameters: the same parameters at every rank, whose gradients are those of the mean over the rank's own
                items, or None without items.
            share: the own items' share of the batch, 0 to 1.

        Raises:
            PeerLostError: another process has ended.
        """
        if self._group is None:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        flat = torch.cat(
            [
                torch.zeros(parameter.numel()) if parameter.grad is None else share * parameter.grad.float().flatten()
                for parameter in trained
            ]
        )
        self._collective(lambda: self._group.allreduce([flat]))
        for parameter, summed in zip(trained, torch.split(flat, [one.numel() for one in trained]), strict=True):
            parameter.grad = summed.view_as(parameter).to(parameter.dtype)

    def align(self, modules: Iterable[nn.Module]) -> None:
        """Take the weights of rank 0.

        Raises:
            PeerLostError: another process has ended.
        """
        if self._group is None:
            return
        for module in modules:
            for tensor in module.state_dict().values():
                # A view with other strides (channels last) is sent as a contiguous copy.
                whole = tensor if tensor.is_contiguous() else tensor.contiguous()
                self._collective(partial(self._group.broadcast, whole, 0))
                if whole is not tensor:
                    tensor.copy_(whole)

    def wait(self) -> None:
        """Wait until all ranks have called this.

        Raises:
            PeerLostError: another process has ended.
        """
        if self._group is not None:
            self._collective(self._group.barrier)

    def _collective(self, begin: Callable[[], Any]) -> None:
        """Run a collective operation.

        Raises:
            PeerLostError: another process has ended.
        """
        try:
            begin().wait()
        except RuntimeError as error:  # gloo's own, of no other class
            raise PeerLostError(
                "a process that shares this training has ended; the same command goes on from the last checkpoint"
            ) from error
