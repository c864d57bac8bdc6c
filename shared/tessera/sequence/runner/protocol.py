"""The interface between the sequence engine and a loaded model."""

from __future__ import annotations

from typing import Protocol

from tessera.sequence.batch import Batch, StepOutput
from tessera.sequence.runner.image_encoder import ImageEncoder


class BatchRunner(Protocol):
    """A model that computes batches; `tessera.sequence.runner.sequence_runner.SequenceRunner` is the real one."""

    pages: int
    """Number of KV pages on the device."""
    page_size: int
    """Token slots of a page."""
    host_pages: int
    """Number of KV pages on the host."""
    encoder: ImageEncoder | None
    """The vision part; None when the model takes no images."""
    asynchronous: bool
    """Whether `run` returns before its batch is computed."""

    @property
    def context_length(self) -> int:
        """Positions that the model was trained for."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        ...

    @property
    def graph_steps(self) -> int:
        """Number of steps since the start that were computed as a graph."""
        ...

    def run(self, batch: Batch) -> StepOutput:
        """Compute a batch; the returned tensors are valid until the next run."""
        ...
