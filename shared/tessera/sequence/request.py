"""A sequence request inside the engine: its tokens, how many of them are computed, and the pages that it references.

Knows nothing about scheduling or the meaning of a token.
"""

from __future__ import annotations

import enum
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from tessera.cache.radix import RadixNode, TreeCursor
from tessera.sequence.grammar.matcher import Matcher
from tessera.sequence.sampling.constraints import TokenConstraints
from tessera.wire.engine import Sampling, TokenScore

PENDING = -1
"""Stands for a token that the device has sampled and the host has not read yet."""
_arrivals = itertools.count()


class RequestState(enum.IntEnum):
    """State of a request on its way through the engine, in order; see `tessera.sequence.intake` for those that wait."""

    NEW = 0
    """The request is not queued yet."""
    AWAITING_GRAMMAR = 1
    """The request waits until its grammar is compiled."""
    AWAITING_ENCODER = 2
    """The request waits until its images are encoded."""
    WAITING = 3
    """The request waits to be admitted, for the first time or again after a preemption."""
    RUNNING = 4
    """The request is admitted: it references pages, and every step may compute positions of it."""
    ENDED = 5
    """The request was answered to its end, has failed, or was cancelled."""


@dataclass(eq=False)
class SequenceRequest:
    """One sequence to continue (`sampling` is given) or to embed (`sampling` is None)."""

    # set by the client
    request_id: str
    token_ids: list[int]
    sampling: Sampling | None
    media: Any = None
    """Output of the model's image encoder, or None; opaque here. See `tessera.sequence.runner.image_encoder`."""

    priority: int = 0
    """Requests with a lower value are served first."""
    tenant: str = ""
    """Tenant whose fair share pays for this request."""
    salt: str = ""
    """Salt of the prefix cache: only requests with the same salt share prefixes."""
    pin: bool = False
    """Whether the pages of the prompt stay in the prefix cache for good."""
    deadline: float = math.inf
    """Time of the monotonic clock, in seconds, after which nobody waits for the answer."""

    # set on arrival
    arrival: int = field(default_factory=lambda: next(_arrivals))
    prompt_length: int = field(init=False)
    constraints: TokenConstraints | None = field(init=False)
    """Tokens that the client allows; None if it allows all."""
    cache_ids: list[int] = field(init=False)
    """Token ids as the prefix cache sees them: image tokens have the image's own ids. See `identify_media`."""

    # set by the intake and the scheduler
    state: RequestState = RequestState.NEW
    computed: int = 0
    """Number of positions whose keys and values are in the cache."""
    pages: list[int] = field(default_factory=list)
    """Pages that hold them, in order, and pages that the next positions go to."""
    preemptions: int = 0
    """Number of times that it lost its pages to another request."""
    cached_tokens: int = 0
    """Positions found in the prefix cache when the request was first admitted."""
    shared_pages: int = 0
    """Whole pages at the beginning that other requests computed, at every admission so far."""
    cursor: TreeCursor | None = None
    """Position in the prefix cache's tree while it runs; None if it may not share pages."""
    claim: tuple[RadixNode, tuple[int, ...]] | None = None
    """Page that it is computing for others, too; see `tessera.sequence.prefix_claims`."""

    prompt_scores: list[TokenScore] = field(default_factory=list)
    """Scores of the prompt's tokens behind the first, as far as they are computed, if the client wants them."""

    # set by the sampler
    noise_seed: int | None = None
    """Seed of its sampling noise; see `tessera.sequence.sampling.noise`."""

    # set by the engine
    matcher: Matcher | None = None
    """State of its grammar, if it has one."""
    forced: list[int] = field(default_factory=list)
    """Next tokens, in order, as far as its grammar leaves no choice; see `tessera.sequence.sampling.forced_tokens`."""
    pooled: Any = None
    """Sum of the last hidden states computed so far, if it is an embedding."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.token_ids)
        self.cache_ids = self.token_ids
        constraints = TokenConstraints(self.sampling) if self.sampling is not None else None
        self.constraints = constraints or None

    def append(self, token_id: int) -> None:
        """Add a token at the end."""
        self.token_ids.append(token_id)
        if self.cache_ids is not self.token_ids:
            self.cache_ids.append(token_id)

    @property
    def is_full(self) -> bool:
        """Whether it has all the tokens that it may have, a pending one included."""
        return self.sampling is not None and self.output_length >= self.sampling.max_tokens

    @property
    def has_pending(self) -> bool:
        """Whether its last token is one that only the device knows."""
        return self.token_ids[-1] == PENDING

    def drop_pending(self) -> None:
        """Remove the pending token, if there is one: its value is known now, or it will not be used."""
        if self.has_pending:
            self.token_ids.pop()
            if self.cache_ids is not self.token_ids:
                self.cache_ids.pop()

    def identify_media(self, ids: dict[int, int]) -> None:
        """Give image tokens cache ids of their own, so that the prefix cache can tell images apart.

        Args:
            ids: Cache id by position of an image token: negative, and equal for equal images only.
        """
        self.cache_ids = [ids.get(position, token) for position, token in enumerate(self.token_ids)]

    @property
    def reuses_prefix(self) -> bool:
        """Whether it may use pages of others: not if it needs an output at every position."""
        return self.sampling is not None and self.sampling.prompt_logprobs is None

    def scored_positions(self, start: int, count: int) -> range:
        """Return those of the positions from `start` to `start + count - 1` whose logits score a prompt token."""
        if self.sampling is None or self.sampling.prompt_logprobs is None:
            return range(0)
        # After a preemption, positions are computed again that are scored already.
        first = max(start, len(self.prompt_scores))
        return range(first, max(first, min(start + count, self.prompt_length - 1)))

    @property
    def remaining(self) -> int:
        """Number of positions to compute before the next token can be sampled."""
        return len(self.token_ids) - self.computed

    @property
    def output_length(self) -> int:
        """Number of tokens behind the prompt."""
        return len(self.token_ids) - self.prompt_length
