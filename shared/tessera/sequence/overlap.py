"""A step whose tokens are sampled on the device and not read yet, so that the next step can be queued behind it.

The next step is chosen while the last tokens of its requests are `PENDING`: their number is known, which is all that
pages and budgets need. A request that has ended in the meantime is a surplus row of that step, which is not sampled.
Everything else that depends on a token (stop tokens, grammars, penalties) happens when the token is read, before the
next one is sampled: so overlapping changes no answer. Knows nothing about the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.sequence.batch import PendingTokens
from tessera.sequence.request import PENDING, SequenceRequest
from tessera.sequence.sampling.sampler import InFlightTokens, SampledToken


@dataclass(frozen=True)
class InFlightStep:
    """Tokens in flight from the device.

    Attributes:
        requests: Requests that a token was sampled for.
        tokens: Their tokens, in the same order.
    """

    requests: list[SequenceRequest]
    tokens: InFlightTokens

    def mark_pending(self) -> None:
        """Give each request a `PENDING` token, so that the next step can be chosen."""
        for request in self.requests:
            request.append(PENDING)

    @property
    def pending(self) -> PendingTokens:
        """Source of these tokens for the next step."""
        return PendingTokens(self.tokens.tokens_R, {request: row for row, request in enumerate(self.requests)})

    @property
    def pins_pages(self) -> bool:
        """Whether `collect` brings the first token of a request that pins its prompt.

        The prompt has to be pinned before the next step is chosen, because that step may take its pages.
        """
        return any(request.pin and request.output_length == 1 for request in self.requests)

    def collect(self) -> list[tuple[SequenceRequest, SampledToken]]:
        """Wait for the tokens and return them. The requests have no `PENDING` token any more."""
        try:
            sampled = self.tokens.read()
        finally:
            for request in self.requests:
                request.drop_pending()
        return list(zip(self.requests, sampled, strict=True))
