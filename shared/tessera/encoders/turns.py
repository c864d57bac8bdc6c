"""Whose texts the next step encodes: priorities first, then fair shares of tenants, then of a tenant's requests.

Shares are counted in tokens (the virtual token counter of Sheng et al. 2024). `tessera.sequence.fair_queue` admits
whole requests; this one hands out single texts, so that a request of one text does not wait for one of a
thousand. Who comes back, or comes new, begins at the lowest counter of those who are there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from tessera.wire.engine import Encode

Line = tuple[int, str, int]
"""Priority, tenant and model of requests that take turns with each other."""


@dataclass(eq=False)
class EncodeRequest:
    """A request of the queue.

    Attributes:
        message: what is asked for.
        arrival: number of the request, in order of arrival.
        deadline: time of `time.monotonic` after which nobody waits for it; None without one.
        taken: texts that a step has taken.
        served: tokens of its texts that were taken, relative to the other requests of its line.
        rows: values of its texts, in order.
    """

    message: Encode
    arrival: int
    deadline: float | None = None
    taken: int = 0
    served: float = 0.0
    rows: list[torch.Tensor] = field(default_factory=list)

    @property
    def line(self) -> Line:
        """Where it takes turns."""
        return self.message.priority, self.message.tenant, self.message.model

    @property
    def next_tokens(self) -> int:
        """Tokens of its next text."""
        return len(self.message.texts[self.taken].token_ids)


@dataclass(frozen=True)
class Share:
    """What one request gets in a step: its texts from `begin` up to but not including `end`."""

    request: EncodeRequest
    begin: int
    end: int


class Turns:
    """The requests that have texts left."""

    def __init__(self) -> None:
        self._lines: dict[Line, list[tuple[float, int, EncodeRequest]]] = {}
        self._served: defaultdict[str, float] = defaultdict(float)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[EncodeRequest]:
        return (request for line in self._lines.values() for *_, request in line)

    def add(self, request: EncodeRequest) -> None:
        """Queue a new request."""
        tenant = request.message.tenant
        present = {other for _, other, _ in self._lines}
        if not present:
            self._served.clear()
        elif tenant not in present:
            self._served[tenant] = max(self._served[tenant], min(self._served[other] for other in present))
        line = self._lines.setdefault(request.line, [])
        request.served = line[0][0] if line else 0.0
        heapq.heappush(line, (request.served, request.arrival, request))

    def remove(self, request: EncodeRequest) -> None:
        """Take a request out; one that is not there is no error."""
        line = self._lines.get(request.line, [])
        line[:] = [entry for entry in line if entry[2] is not request]
        heapq.heapify(line)
        if not line:
            self._lines.pop(request.line, None)

    def take(self, budget: int) -> list[Share]:
        """The texts of the next step, all of one model: at least one, and further ones while `budget` tokens last."""
        begun: dict[EncodeRequest, int] = {}
        model: int | None = None
        used = 0
        while (line := self._next_line(model)) is not None:
            request = self._lines[line][0][2]
            tokens = request.next_tokens
            if begun and used + tokens > budget:
                break
            begun.setdefault(request, request.taken)
            model, used = line[2], used + tokens
            request.taken += 1
            request.served += tokens
            self._served[line[1]] += tokens
            if request.taken < len(request.message.texts):
                heapq.heapreplace(self._lines[line], (request.served, request.arrival, request))
            else:
                heapq.heappop(self._lines[line])
                if not self._lines[line]:
                    del self._lines[line]
        return [Share(request, begin, request.taken) for request, begin in begun.items()]

    def _next_line(self, model: int | None) -> Line | None:
        lines = [line for line in self._lines if model is None or line[2] == model]
        return min(lines, key=lambda line: (line[0], self._served[line[1]], self._lines[line][0][1]), default=None)
