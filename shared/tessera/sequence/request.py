"""A sequence request inside the engine: its tokens, what of them is computed, and the pages it holds.

Does not know how it is scheduled or what a token means.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from tessera.cache.radix import Cursor, Node
from tessera.sequence.grammar.matcher import Matcher
from tessera.wire.engine import Sampling, TokenScore

PENDING = -1
"""Stands for a token that the device has drawn and the host has not read yet."""
_arrivals = itertools.count()


@dataclass(eq=False)
class SequenceRequest:
    """One sequence to continue (`sampling` given) or to embed (`sampling` is None)."""

    # set by the client
    request_id: str
    token_ids: list[int]
    sampling: Sampling | None
    media: Any = None
    """What the model's encoder made of images, or None; opaque here. See `tessera.sequence.runner.image_encoder`."""

    priority: int = 0
    """Lower is served first."""
    tenant: str = ""
    """Whose share it counts for."""
    salt: str = ""
    """Only requests with the same salt share cached prefixes."""
    pin: bool = False
    """Whether the pages of its prompt stay in the prefix cache for good."""
    deadline: float = math.inf
    """Seconds of the monotonic clock after which nobody waits for the answer."""

    # set on arrival
    arrival: int = field(default_factory=lambda: next(_arrivals))
    prompt_length: int = field(init=False)
    cache_ids: list[int] = field(init=False)
    """Token ids as the prefix cache sees them: what stands for an image is the image's own. See `identify_media`."""

    # set by the scheduler
    computed: int = 0
    """Positions whose keys and values are in the cache."""
    pages: list[int] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0
    """Positions that were not computed for it, because the prefix cache had them."""
    shared_pages: int = 0
    """Pages at its beginning that others computed, every time it was admitted."""
    cursor: Cursor | None = None
    claim: tuple[Node, tuple[int, ...]] | None = None

    prompt_scores: list[TokenScore] = field(default_factory=list)
    """Of the prompt's tokens behind the first, as far as they are computed, when they are asked for."""

    # set by the sampler
    noise_seed: int | None = None
    """What its noise is drawn with; see `tessera.sequence.sampling.noise`."""

    # set by the engine
    matcher: Matcher | None = None
    """Where it stands in its grammar, if it has one."""
    forced: list[int] = field(default_factory=list)
    """Tokens that its grammar leaves no choice about, the next one first; see
    `tessera.sequence.sampling.forced_tokens`.
    """
    pooled: Any = None
    """Sum of last hidden states so far, for an embedding."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.token_ids)
        self.cache_ids = self.token_ids

    def append(self, token_id: int) -> None:
        """Take the next token."""
        self.token_ids.append(token_id)
        if self.cache_ids is not self.token_ids:
            self.cache_ids.append(token_id)

    @property
    def is_full(self) -> bool:
        """Whether it has all the tokens it may have, a pending one included."""
        return self.sampling is not None and self.output_length >= self.sampling.max_tokens

    @property
    def pending(self) -> bool:
        """Whether its last token is one that only the device knows."""
        return self.token_ids[-1] == PENDING

    def drop_pending(self) -> None:
        """Forget that a token is pending, if one is: it is known now, or it will not be used."""
        if self.pending:
            self.token_ids.pop()
            if self.cache_ids is not self.token_ids:
                self.cache_ids.pop()

    def identify_media(self, ids: dict[int, int]) -> None:
        """Let the prefix cache tell images apart.

        Args:
            ids: position of every image token → a number that is the same for the same image alone; below zero.
        """
        self.cache_ids = [ids.get(position, token) for position, token in enumerate(self.token_ids)]

    @property
    def reuses_prefix(self) -> bool:
        """Whether it may take what others computed: not when something is needed of all its positions."""
        return self.sampling is not None and self.sampling.prompt_logprobs is None

    def scored_positions(self, start: int, count: int) -> range:
        """Those of positions `start` … `start + count - 1` whose logits score a token of its prompt."""
        if self.sampling is None or self.sampling.prompt_logprobs is None:
            return range(0)
        # After a preemption some are computed again that are scored already.
        first = max(start, len(self.prompt_scores))
        return range(first, max(first, min(start + count, self.prompt_length - 1)))

    @property
    def remaining(self) -> int:
        """Positions still to compute before the next token can be sampled."""
        return len(self.token_ids) - self.computed

    @property
    def output_length(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.prompt_length
