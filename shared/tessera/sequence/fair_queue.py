"""The order of admission: priorities first, then fair shares between tenants, then the order of arrival.

Fairness is the virtual token counter of Sheng et al. 2024 ("Fairness in Serving Large Language Models"): a tenant's
counter grows with the tokens computed for it, and the tenant with the lowest counter is next. A tenant who comes back
starts at the lowest counter of those who stayed, so absence saves nothing up. Knows nothing about pages.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator

from tessera.sequence.request import SequenceRequest


class FairQueue:
    """Requests that wait to be admitted, and the counters that decide who is next."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], list[SequenceRequest]] = {}
        """Requests by priority and tenant, in order of arrival."""
        self._served: defaultdict[str, float] = defaultdict(float)
        """Tokens computed for a tenant, weighted, relative to the other tenants."""
        self._active: defaultdict[str, int] = defaultdict(int)
        """Number of requests of a tenant that wait or run."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceRequest]:
        """Iterate in order of admission. Valid until a request is added or removed or a tenant is charged."""
        places = dict.fromkeys(self._lines, 0)
        while places:
            line = min(places, key=lambda at: (at[0], self._served[at[1]], self._lines[at][places[at]].arrival))
            yield self._lines[line][places[line]]
            places[line] += 1
            if places[line] == len(self._lines[line]):
                del places[line]

    def first_of_lines(self) -> list[SequenceRequest]:
        """Return the first request of each priority and tenant, in order of admission."""
        firsts = [line[0] for line in self._lines.values()]
        return sorted(firsts, key=lambda one: (one.priority, self._served[one.tenant], one.arrival))

    def served(self, tenant: str) -> float:
        """Return the weighted tokens computed for a tenant, relative to the other tenants."""
        return self._served.get(tenant, 0.0)

    def active(self, tenant: str) -> int:
        """Return the number of requests of a tenant that wait to be admitted or run."""
        return self._active.get(tenant, 0)

    def waiting(self) -> Counter[str]:
        """Return the number of requests that wait, by tenant."""
        counts: Counter[str] = Counter()
        for (_, tenant), line in self._lines.items():
            counts[tenant] += len(line)
        return counts

    def __contains__(self, request: SequenceRequest) -> bool:
        return request in self._lines.get((request.priority, request.tenant), ())

    def enter(self, request: SequenceRequest) -> None:
        """Count a new request for its tenant until `leave`, whether it waits or runs."""
        if not self._active[request.tenant]:
            present = [self._served[tenant] for tenant, count in self._active.items() if count]
            if present:
                self._served[request.tenant] = max(self._served[request.tenant], min(present))
        self._active[request.tenant] += 1

    def leave(self, request: SequenceRequest) -> None:
        """Stop counting a request that has ended."""
        self._active[request.tenant] -= 1
        if not self._active[request.tenant]:
            del self._active[request.tenant]
        if not self._active:
            self._served.clear()

    def add(self, request: SequenceRequest) -> None:
        """Queue a request; a preempted one gets its old place, because its arrival stays the same."""
        insort(self._lines.setdefault((request.priority, request.tenant), []), request, key=lambda r: r.arrival)
        self._length += 1

    def remove(self, request: SequenceRequest) -> None:
        """Take a request out of the queue."""
        at = request.priority, request.tenant
        self._lines[at].remove(request)
        if not self._lines[at]:
            del self._lines[at]
        self._length -= 1

    def charge(self, tenant: str, tokens: float) -> None:
        """Add `tokens` to a tenant's counter."""
        self._served[tenant] += tokens
