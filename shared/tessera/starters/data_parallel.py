"""Several processes that share each step of a training: everyone computes its part of a batch, gradients are summed.

On a CPU a process with one thread for each core is faster than one process with a thread for each: small operations
gain little from threads. Everyone keeps all weights and updates them alike; from time to time the first one's weights
are taken by all, so that last bits that differ do not add up. Does not know stages or recipes.
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
"""Steps after which everyone takes the first one's weights."""
PATIENCE = timedelta(minutes=30)
"""That others are waited for."""


class PeerLostError(StartError):
    """Another process of the training is gone."""


class DataParallelGroup:
    """One process' place among those that train together; alone unless `join` was called.

    Attributes:
        rank: 0 is the one that writes files and reports.
        count: of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._group: Any = None

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def join(self, rendezvous: Path) -> None:
        """Meet the others.

        Args:
            rendezvous: a file in a directory of this training's own, which is there for no one else.
        """
        tools: Any = distributed  # whose stubs leave most of it out
        gloo = tools.ProcessGroupGloo
        options = gloo._Options()
        # Gradients are nobody else's business.
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = PATIENCE
        store = tools.FileStore(str(rendezvous), self.count)
        self._group = gloo(store, self.rank, self.count, options)

    def leave(self) -> None:
        """Part from the others; who still waits for this one gets an error."""
        self._group = None

    def own_items(self, items: int) -> slice:
        """Which items of a batch are this process' own; the first one has most, others may have none."""
        return slice(-(-items * self.rank // self.count), -(-items * (self.rank + 1) // self.count))

    def own_share(self, items: int) -> float:
        """How much of a batch of so many items that is."""
        return len(range(items)[self.own_items(items)]) / items

    def sum_gradients(self, parameters: Iterable[nn.Parameter], share: float) -> None:
        """Give everyone the gradients of the whole batch.

        Args:
            parameters: the same at everyone; gradients of the mean over this process' part, or none without one.
            share: the part's share of the batch.

        Raises:
            PeerLostError: another process is gone.
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
        self._do(lambda: self._group.allreduce([flat]))
        for parameter, summed in zip(trained, torch.split(flat, [one.numel() for one in trained]), strict=True):
            parameter.grad = summed.view_as(parameter).to(parameter.dtype)

    def align(self, modules: Iterable[nn.Module]) -> None:
        """Take the first process' weights.

        Raises:
            PeerLostError: another process is gone.
        """
        if self._group is None:
            return
        for module in modules:
            for tensor in module.state_dict().values():
                # Strided views (channels last) are sent as they lie, which is alike at everyone.
                whole = tensor if tensor.is_contiguous() else tensor.contiguous()
                self._do(partial(self._group.broadcast, whole, 0))
                if whole is not tensor:
                    tensor.copy_(whole)

    def wait(self) -> None:
        """Until all are here.

        Raises:
            PeerLostError: another process is gone.
        """
        if self._group is not None:
            self._do(self._group.barrier)

    def _do(self, begin: Callable[[], Any]) -> None:
        """Something that all do together.

        Raises:
            PeerLostError: one of them does not.
        """
        try:
            begin().wait()
        except RuntimeError as error:  # gloo's own, of no other class
            raise PeerLostError(
                "a process that shares this training has ended; the same command goes on from the last checkpoint"
            ) from error
