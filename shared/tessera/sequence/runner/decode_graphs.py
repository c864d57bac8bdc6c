"""Decode steps as CUDA graphs: captured once for each padded size, replayed on the contents of the static inputs.

A decode step of a small model is hundreds of kernels of a few microseconds, and launching them from Python takes longer
than running them; a graph is one launch. A captured step reads static inputs, weights and the cache, and writes the
cache and one tensor of logits, nothing else. So all graphs share one memory pool, as large as the largest graph needs.

Steps that cannot be captured (prompts, draft tokens, images, a model that synchronizes with the device while it runs)
run as separate launches. Does not know what a model computes.
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
"""Bytes that the driver is assumed to need for one graph, beside its memory for tensors; an estimate on the safe side.
The log of the start shows what all graphs took."""

Compute = Callable[[StepInputs], torch.Tensor]
"""Computes the logits [R, V] of a step from its inputs."""


class Capture(Protocol):
    """Makes graphs. `CudaCapture` makes real ones; those of tests show what a graph would read and write."""

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture `run`; the returned function repeats its device work on the same memory, without its Python.

        Raises:
            RuntimeError: `run` does something that cannot be captured.
        """
        ...

    def working_bytes(self, run: Callable[[], object]) -> int:
        """Peak bytes of device memory that `run` allocates, measured by running it."""
        ...


class CudaCapture:
    """Captures graphs on one CUDA device, in one memory pool.

    Args:
        device: where all graphs run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture `run`, after a run that compiles kernels and one that finds what would synchronize."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        before = torch.cuda.get_sync_debug_mode()
        with torch.cuda.stream(self._stream):
            run()
            # A synchronization would break the capture, and the allocator with it, so it is found before.
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
        """Peak bytes that the second run allocates."""
        run()  # compiles kernels and allocates workspaces, which stay
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - before


class DecodeGraphs:
    """Decode steps of one model, each padded to the next size that has a graph.

    Args:
        inputs: static inputs that the graphs read.
        compute: the model's forward pass for decode steps.
        capture: makes the graphs, all of them at once and the largest first, so that smaller ones find their memory in
            the pool.

    Attributes:
        sizes: padded sizes, ascending.
        replayed: number of steps that ran as a graph.
        logits_NV: logits of the last step.

    Raises:
        RuntimeError: the model does something that cannot be captured.
    """

    def __init__(self, inputs: StaticInputs, compute: Compute, capture: Capture) -> None:
        self.sizes = padded_sizes(inputs.max_rows)
        self.replayed = 0
        self._inputs = inputs
        largest = compute(inputs.view(inputs.max_rows))
        self.logits_NV = torch.empty_like(largest)
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
        """Whether `run` can compute a batch. The caller makes the batch's transfers."""
        return len(batch.chunks) <= self._inputs.max_rows and is_decode(batch)

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits [chunks, V] of a batch for which `can_run` is true; valid until the next step."""
        rows = len(batch.chunks)
        size = self.sizes[bisect.bisect_left(self.sizes, rows)]
        self._inputs.write(batch, size)
        self._graphs[size]()
        self.replayed += 1
        return self.logits_NV[:rows]


def graph_bytes(inputs: StaticInputs, compute: Compute, capture: Capture) -> int:
    """Bytes of device memory that `DecodeGraphs` of the same arguments will take, measured by running the largest step.

    Logits count twice: the tensor that the model computes, and the one that keeps them until the next step.
    """
    given = inputs.view(inputs.max_rows)
    logits_NV = compute(given)
    logits_bytes = logits_NV.nbytes
    del logits_NV
    overhead = GRAPH_BYTES * len(padded_sizes(inputs.max_rows))
    return capture.working_bytes(lambda: compute(given)) + logits_bytes + overhead


def capture_graphs(inputs: StaticInputs, compute: Compute, capture: Capture) -> DecodeGraphs | None:
    """Capture decode steps; None where that is impossible. The log gives the reason, and steps run kernel by kernel."""
    try:
        graphs = DecodeGraphs(inputs, compute, capture)
    except RuntimeError as error:
        reason = str(_first(error)).strip().split("\n", maxsplit=1)[0]
        logger.warning("decode steps are not captured as CUDA graphs: %s", reason)
        return None
    logger.info("decode steps of %s sequences are CUDA graphs", ", ".join(map(str, graphs.sizes)))
    return graphs


def _first(error: BaseException) -> BaseException:
    """The first error of a chain: a capture that fails raises once more when it ends."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error
