"""Decode steps as CUDA graphs: captured once for each padded size, replayed on whatever stands in the static inputs.

A decode step of a small model is hundreds of kernels of a few microseconds, and launching them from Python takes longer
than they do; a graph is one launch. What is captured reads static inputs, weights and the cache, and writes the cache
and one tensor of logits, nothing else; so graphs share one pool of memory, which is as large as the largest needs.

What cannot be captured (prompts, guesses, images, a model that asks the device something while it runs) runs as before.
Does not know what a model computes.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable
from typing import Protocol

import torch

from tessera.sequence.batch import Batch
from tessera.sequence.runner.step_inputs import StaticInputs, StepInputs, is_decode, padded_sizes

logger = logging.getLogger(__name__)

GRAPH_BYTES = 8 << 20
"""What the driver keeps of one graph beside its memory for tensors: a guess on the safe side. The log of the start says
what it was."""

Compute = Callable[[StepInputs], torch.Tensor]
"""Logits [R, V] of a step, from its inputs."""


class Capture(Protocol):
    """Makes graphs. `CudaCapture` is one; tests have others, which show what a graph would read and write."""

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """What repeats the device's work of `run`, on the same memory, without its Python.

        Raises:
            RuntimeError: `run` does what a graph cannot.
        """
        ...

    def working_bytes(self, run: Callable[[], object]) -> int:
        """The most memory that `run` takes beside what there is before, found by running it."""
        ...


class CudaCapture:
    """Graphs of one CUDA device, in one pool of memory.

    Args:
        device: where all of them run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """As `Capture.graph`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        before = torch.cuda.get_sync_debug_mode()
        with torch.cuda.stream(self._stream):
            run()
            # What waits for the device would break a capture, and the allocator with it: it is found before.
            torch.cuda.set_sync_debug_mode("error")
            try:
                run()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        replay: Callable[[], None] = graph.replay
        return replay

    def working_bytes(self, run: Callable[[], object]) -> int:
        """As `Capture.working_bytes`."""
        run()  # compiles kernels and makes workspaces, which stay
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - before


class DecodeGraphs:
    """Decode steps of one model, each padded to the next size of which there is a graph.

    Args:
        inputs: that graphs read.
        compute: the model's forward, for decode steps.
        capture: makes the graphs. All of them are made at once, the largest first, so that smaller ones find their
            memory in the pool.

    Raises:
        RuntimeError: the model does what a graph cannot.
    """

    def __init__(self, inputs: StaticInputs, compute: Compute, capture: Capture) -> None:
        self.sizes = padded_sizes(inputs.max_rows)
        self.replayed = 0
        """Steps that ran as a graph."""
        self._inputs = inputs
        largest = compute(inputs.view(inputs.max_rows))
        self.logits_NV = torch.empty_like(largest)
        """Of the last step."""
        del largest
        self._graphs: dict[int, Callable[[], None]] = {}
        for size in reversed(self.sizes):
            self._graphs[size] = capture.graph(self._step(compute, size))

    def _step(self, compute: Compute, size: int) -> Callable[[], None]:
        given, logits_RV = self._inputs.view(size), self.logits_NV[:size]

        def run() -> None:
            logits_RV.copy_(compute(given))

        return run

    def can_run(self, batch: Batch) -> bool:
        """Whether `run` can compute a batch: its transfers are the caller's."""
        return len(batch.chunks) <= self._inputs.max_rows and is_decode(batch)

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits of each chunk of a batch that `can_run`, [chunks, V]; valid until the next step."""
        rows = len(batch.chunks)
        size = self.sizes[bisect.bisect_left(self.sizes, rows)]
        self._inputs.write(batch, size)
        self._graphs[size]()
        self.replayed += 1
        return self.logits_NV[:rows]


def graph_bytes(inputs: StaticInputs, compute: Compute, capture: Capture) -> int:
    """Device memory that `DecodeGraphs` of the same arguments will take, found by running the largest step.

    Its logits are there twice: once where they are computed and once where they stay.
    """
    given = inputs.view(inputs.max_rows)
    logits_NV = compute(given)
    kept = logits_NV.nbytes
    del logits_NV
    return capture.working_bytes(lambda: compute(given)) + kept + GRAPH_BYTES * len(padded_sizes(inputs.max_rows))


def capture_graphs(inputs: StaticInputs, compute: Compute, capture: Capture) -> DecodeGraphs | None:
    """`DecodeGraphs`, or None where they cannot be made: the log says why, and steps run one launch after another."""
    try:
        made = DecodeGraphs(inputs, compute, capture)
    except RuntimeError as error:
        reason = str(_first(error)).strip().split("\n", maxsplit=1)[0]
        logger.warning("decode steps are not captured as CUDA graphs: %s", reason)
        return None
    logger.info("decode steps of %s sequences are CUDA graphs", ", ".join(map(str, made.sizes)))
    return made


def _first(error: BaseException) -> BaseException:
    """What went wrong first: a capture that is broken off raises once more at its end."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error
