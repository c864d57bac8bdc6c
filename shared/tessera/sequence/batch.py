"""What one step runs, passed as a value from the scheduler to the runner and the sampler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tessera.cache.transfers import Transfer
from tessera.sequence.request import SequenceRequest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PendingTokens:
    """Tokens of the step before that are on the device alone.

    Attributes:
        tokens_R: int64, on the device.
        rows: of each request whose last token is `PENDING`, where in `tokens_R` it is.
    """

    tokens_R: torch.Tensor
    rows: dict[SequenceRequest, int]


@dataclass(frozen=True)
class TopLogit:
    """Of some rows of logits the largest one.

    Attributes:
        tokens_R: int64, the first one's of equal ones.
        logits_R: it. NaN where one of the row is none.
    """

    tokens_R: torch.Tensor
    logits_R: torch.Tensor

    def __getitem__(self, rows: slice | torch.Tensor) -> TopLogit:
        """Of some of the rows."""
        return TopLogit(self.tokens_R[rows], self.logits_R[rows])


@dataclass(frozen=True)
class Chunk:
    """Positions `start` … `start + count - 1` of a request are computed in this step.

    The last of them may be a `guess` of tokens that the request does not have yet.
    """

    request: SequenceRequest
    start: int
    count: int
    draft_ids: tuple[int, ...] = ()

    @property
    def known_count(self) -> int:
        """Positions that are computed of tokens that the request has."""
        return self.count - len(self.draft_ids)

    @property
    def completes(self) -> bool:
        """Whether everything the request has is computed after this step, so that a token can be sampled."""
        return self.start + self.known_count == len(self.request.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """Of its positions."""
        return [*self.request.token_ids[self.start : self.start + self.known_count], *self.draft_ids]


@dataclass(frozen=True)
class Batch:
    """The chunks of one step, ragged: their tokens stand one after another.

    `transfers` are pages that have to move before, in this order; `pending` is where tokens come from that are
    `PENDING` in its chunks.
    """

    chunks: list[Chunk]
    transfers: list[Transfer] = field(default_factory=list)
    pending: PendingTokens | None = None

    @property
    def tokens(self) -> int:
        """Positions computed in this step."""
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True)
class StepOutput:
    """What a step computed.

    Attributes:
        logits_RV: next-token logits of each chunk that completes a request to be sampled, in batch order; one row more
            for each guessed token.
        hidden_TD: last hidden states of all tokens when a chunk's request is an embedding, else None.
        prompt_logits_SV: logits that score tokens of prompts, for `SequenceRequest.scored` of each chunk in turn.
        top_logit: tokens of `logits_RV`, where they were found on the way.
    """

    logits_RV: torch.Tensor
    hidden_TD: torch.Tensor | None
    prompt_logits_SV: torch.Tensor | None = None
    top_logit: TopLogit | None = None
