"""Policies of a step: the order in which running requests are computed, and the choice of who is preempted.

Pure functions without side effects. Knows nothing about pages or the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tessera.sequence.batch import Chunk
from tessera.sequence.request import SequenceRequest


def step_order(running: Iterable[SequenceRequest], pages: Mapping[str, int]) -> list[SequenceRequest]:
    """Order running requests for the step's budget.

    Decodes (one position left) come before prefills, so that a long prompt does not hold them up; then priority
    decides, then who finds pages first if they run out: the tenant that holds fewest, then age.

    Args:
        running: Requests that run.
        pages: Pages that each tenant's running requests hold.
    """
    return sorted(
        running,
        key=lambda request: (request.remaining > 1, request.priority, pages[request.tenant], request.arrival),
    )


def choose_victim(candidates: Collection[SequenceRequest], held: Mapping[str, int]) -> SequenceRequest:
    """Choose who is preempted: of the lowest priority, and of the tenant that holds most, the one that has computed
    least, the youngest if several have.

    Args:
        candidates: At least one running request that is not in the step yet.
        held: What each tenant holds of what is short, slots or pages.
    """
    return max(
        candidates,
        key=lambda request: (request.priority, held[request.tenant], -request.computed, request.arrival),
    )


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
