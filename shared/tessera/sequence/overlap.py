"""A step whose tokens are drawn on the device and not read yet, so that the next one can be queued behind it.

The next step is chosen while its requests' last tokens are `PENDING`: their number is known, and that is what pages and
budgets need. What has ended in the meantime is a surplus row of that step, which is not sampled. Everything else that a
token decides (stops, grammars, penalties) happens when it is read, before the next one is drawn: so answers are the
same. Does not know the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.sequence.batch import PendingTokens
from tessera.sequence.request import PENDING, SequenceRequest
from tessera.sequence.sampling.sampler import InFlightTokens, SampledToken


@dataclass(frozen=True)
class InFlightStep:
    """What was drawn for which requests, in order."""

    requests: list[SequenceRequest]
    drawn: InFlightTokens

    def mark_pending(self) -> None:
        """From here on the requests have a token more, which nobody knows."""
        for request in self.requests:
            request.append(PENDING)

    @property
    def pending(self) -> PendingTokens:
        """Where the next step finds these tokens."""
        return PendingTokens(self.drawn.tokens_R, {request: row for row, request in enumerate(self.requests)})

    @property
    def pins_pages(self) -> bool:
        """Whether a first token pins pages, which happens before others can take them."""
        return any(request.pin and request.output_length == 1 for request in self.requests)

    def collect(self) -> list[tuple[SequenceRequest, SampledToken]]:
        """The tokens; waits for them. The requests are again as they were before they were drawn."""
        try:
            sampled = self.drawn.read()
        finally:
            for request in self.requests:
                request.drop_pending()
        return list(zip(self.requests, sampled, strict=True))
