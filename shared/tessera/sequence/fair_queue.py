"""Who waits, and who is next: priorities first, then fair shares between tenants, then the order of arrival.

Fairness is the virtual token counter of Sheng et al. 2024 ("Fairness in Serving Large Language Models"): a tenant's
counter grows with the tokens computed for it, whoever has the lowest is next, and one who comes back begins at the
level of those who stayed, so that absence saves nothing up. Does not know pages.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator

from tessera.sequence.request import SequenceRequest


class Waiting:
    """The queue of one engine."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], list[SequenceRequest]] = {}
        """By priority and tenant, in order of arrival."""
        self._served: defaultdict[str, float] = defaultdict(float)
        self._active: defaultdict[str, int] = defaultdict(int)
        """Requests of a tenant that wait or run."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceRequest]:
        """Next first. Valid as long as nobody is added, removed or charged."""
        places = dict.fromkeys(self._lines, 0)
        while places:
            line = min(places, key=lambda at: (at[0], self._served[at[1]], self._lines[at][places[at]].arrival))
            yield self._lines[line][places[line]]
            places[line] += 1
            if places[line] == len(self._lines[line]):
                del places[line]

    def __contains__(self, request: SequenceRequest) -> bool:
        return request in self._lines.get((request.priority, request.tenant), ())

    def enter(self, request: SequenceRequest) -> None:
        """A request is new in the engine: it counts for its tenant until `leave`."""
        if not self._active[request.tenant]:
            present = [self._served[tenant] for tenant, count in self._active.items() if count]
            if present:
                self._served[request.tenant] = max(self._served[request.tenant], min(present))
        self._active[request.tenant] += 1

    def leave(self, request: SequenceRequest) -> None:
        """A request is no longer in the engine."""
        self._active[request.tenant] -= 1
        if not self._active[request.tenant]:
            del self._active[request.tenant]
        if not self._active:
            self._served.clear()

    def add(self, request: SequenceRequest) -> None:
        """Queue a request; one that was preempted gets its old place."""
        insort(self._lines.setdefault((request.priority, request.tenant), []), request, key=lambda r: r.arrival)
        self._length += 1

    def remove(self, request: SequenceRequest) -> None:
        """Take a request out."""
        at = request.priority, request.tenant
        self._lines[at].remove(request)
        if not self._lines[at]:
            del self._lines[at]
        self._length -= 1

    def charge(self, tenant: str, tokens: float) -> None:
        """Note that `tokens` were computed for a tenant."""
        self._served[tenant] += tokens

    def served(self, tenant: str) -> float:
        """What a tenant has been charged, relative to the others."""
        return self._served[tenant]
