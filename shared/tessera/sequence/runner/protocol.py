"""What the sequence engine needs of a loaded model."""

from __future__ import annotations

from typing import Protocol

from tessera.sequence.batch import Batch, StepOutput
from tessera.sequence.runner.image_encoder import ImageEncoder


class BatchRunner(Protocol):
    """What the engine needs of a model; `tessera.sequence.runner.sequence_runner.SequenceRunner` is one."""

    pages: int
    page_size: int
    host_pages: int
    encoder: ImageEncoder | None
    asynchronous: bool
    """Whether `run` comes back before its batch is computed."""

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model knows."""
        ...

    @property
    def graph_steps(self) -> int:
        """Steps that were computed as a graph."""
        ...

    def run(self, batch: Batch) -> StepOutput:
        """Compute a batch."""
        ...
