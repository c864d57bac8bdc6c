"""A sequence request inside the engine: its tokens, what of them is computed, and the pages it holds.

Does not know how it is scheduled or what a token means.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tessera.wire.engine import Sampling

_arrivals = itertools.count()


@dataclass(eq=False)
class SequenceRequest:
    """One sequence to continue (`sampling` given) or to embed (`sampling` is None)."""

    # set by the client
    request_id: str
    token_ids: list[int]
    sampling: Sampling | None
    media: Any = None
    """What the model's encoder made of images, or None; opaque here. See `tessera.models.vision`."""

    # set on arrival
    arrival: int = field(default_factory=lambda: next(_arrivals))
    prompt_length: int = field(init=False)

    # set by the scheduler
    computed: int = 0
    """Positions whose keys and values are in the cache."""
    pages: list[int] = field(default_factory=list)
    preemptions: int = 0

    # set by the sampler
    generator: Any = None

    # set by the engine
    pooled: Any = None
    """Sum of last hidden states so far, for an embedding."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.token_ids)

    @property
    def remaining(self) -> int:
        """Positions still to compute before the next token can be sampled."""
        return len(self.token_ids) - self.computed

    @property
    def output_length(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.prompt_length
