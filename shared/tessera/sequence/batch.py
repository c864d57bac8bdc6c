"""Input and output of one step, passed as values from the scheduler to the runner and the sampler."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tessera.cache.transfers import Transfer
from tessera.sequence.request import SequenceRequest


@dataclass(frozen=True)
class PendingTokens:
    """Tokens of the previous step that only the device knows.

    Attributes:
        tokens_R: int64, on the device.
        rows: Row of `tokens_R` by request, for every request whose last token is `PENDING`.
    """

    tokens_R: torch.Tensor
    rows: dict[SequenceRequest, int]


@dataclass(frozen=True)
class TopLogit:
    """The largest logit of each row, and its token.

    Attributes:
        tokens_R: int64; the first token if several have the largest logit.
        logits_R: Largest logit of each row; NaN if any logit of the row is NaN.
    """

    tokens_R: torch.Tensor
    logits_R: torch.Tensor

    def __getitem__(self, rows: slice | torch.Tensor) -> TopLogit:
        """Select rows."""
        return TopLogit(self.tokens_R[rows], self.logits_R[rows])


@dataclass(frozen=True)
class Chunk:
    """Positions `start` to `start + count - 1` of a request, which a step computes.

    The last of them may belong to `draft_ids`: draft tokens, which the request does not have yet.
    """

    request: SequenceRequest
    start: int
    count: int
    draft_ids: tuple[int, ...] = ()

    @property
    def known_count(self) -> int:
        """Number of its positions whose tokens the request has."""
        return self.count - len(self.draft_ids)

    @property
    def completes(self) -> bool:
        """Whether all tokens that the request has are computed after this step, so that a token can be sampled."""
        return self.start + self.known_count == len(self.request.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """Tokens at its positions, draft tokens last."""
        return [*self.request.token_ids[self.start : self.start + self.known_count], *self.draft_ids]


@dataclass(frozen=True)
class Batch:
    """The chunks of one step. It is ragged: their tokens stand one behind another, as [1, tokens].

    Attributes:
        chunks: At most one for each request.
        transfers: Page transfers that happen before the step, in this order.
        pending: Source of the tokens that are `PENDING` in the chunks.
    """

    chunks: list[Chunk]
    transfers: list[Transfer] = field(default_factory=list)
    pending: PendingTokens | None = None

    @property
    def tokens(self) -> int:
        """Number of positions that this step computes."""
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True)
class StepOutput:
    """Output of one step.

    Attributes:
        logits_RV: Next-token logits of each chunk that completes a request to be sampled, in batch order; one more row
            for each of the chunk's draft tokens.
        hidden_TD: Last hidden states of all tokens if a request of the batch is an embedding, else None.
        prompt_logits_SV: Logits at the `scored_positions` of each chunk in turn, or None if there are none.
        top_logit: Largest logits of `logits_RV`, if the runner found them on the way.
    """

    logits_RV: torch.Tensor
    hidden_TD: torch.Tensor | None
    prompt_logits_SV: torch.Tensor | None = None
    top_logit: TopLogit | None = None
