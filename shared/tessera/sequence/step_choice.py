"""Policies of a step: the order in which running requests are computed, and the choice of who is preempted.

Pure functions without side effects. Knows nothing about pages or the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tessera.sequence.batch import Chunk
from tessera.sequence.request import SequenceRequest


def step_order(running: Iterable[SequenceRequest]) -> list[SequenceRequest]:
    """Order running requests for the step's budget.

    Decodes (one position left) come before prefills, so that a long prompt does not hold them up; then priority
    decides, then age.
    """
    return sorted(running, key=lambda request: (request.remaining > 1, request.priority, request.arrival))


def choose_victim(candidates: Collection[SequenceRequest]) -> SequenceRequest:
    """Choose who is preempted: of the lowest priority the one that has computed least, the youngest if several have.

    Args:
        candidates: At least one running request that is not in the step yet.
    """
    return max(candidates, key=lambda request: (request.priority, -request.computed, request.arrival))


def requests_to_draft(chunks: dict[SequenceRequest, Chunk]) -> list[SequenceRequest]:
    """Return the requests of a step if all of them decode, else none.

    Draft tokens lengthen pure decode steps only: beside a prefill, the step is long already.
    """
    decoding = [
        request
        for request, chunk in chunks.items()
        if chunk.count == 1 and chunk.completes and request.sampling is not None
    ]
    return decoding if len(decoding) == len(chunks) else []
