"""Fair shares between tenants among running requests: who gives way to whom, and how they divide a step.

The queue decides who is admitted next; here is what holds once requests run. A tenant who waits takes the slot or the
pages of a tenant who holds more than a fair share, at once if the exchange leaves the other with no less than itself.
Between tenants who hold the same, turns last `TURN_TOKENS`, so that nobody is preempted back and forth. A tenant alone
is never preempted for another, and gets every slot, page and token of a step. Pure functions without side effects;
knows nothing about the prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from tessera.sequence.request import SequenceRequest
from tessera.sequence.step_choice import choose_victim

TURN_TOKENS = 512.0
"""Weighted tokens (see `FairQueue`) that a tenant is served beyond another before they exchange equal holdings: 256
decode steps, of which one copy of a partial page and one step's delay are a small part."""
CROWD_ROWS = 4
"""Requests that another tenant may run more than a newcomer's own before the newcomer's first token gets a step of its
own: SmolLM2's step of 32 rows takes 120 ms on two cores, that of a prompt of 31 tokens 60 ms."""

Served = Callable[[str], float]
"""Weighted tokens computed for a tenant; see `FairQueue.served`."""


class Holdings:
    """What each tenant holds among running requests, at one moment.

    Args:
        running: Requests that run.
    """

    def __init__(self, running: Iterable[SequenceRequest]) -> None:
        self.slots: Counter[str] = Counter()
        """Number of running requests of a tenant."""
        self.pages: Counter[str] = Counter()
        """Pages that a tenant's running requests reference. A page that two of them share counts twice."""
        for request in running:
            self.slots[request.tenant] += 1
            self.pages[request.tenant] += len(request.pages)

    def remove(self, request: SequenceRequest) -> None:
        """Take away what a request holds."""
        self.slots[request.tenant] -= 1
        self.pages[request.tenant] -= len(request.pages)

    def most_others(self, tenant: str) -> int:
        """Return the largest number of slots that another tenant holds."""
        return max((count for other, count in self.slots.items() if other != tenant), default=0)


def is_newcomer(request: SequenceRequest, held: Holdings) -> bool:
    """Whether another tenant would still hold as many slots as the tenant of a request if this one was admitted."""
    return held.most_others(request.tenant) > held.slots[request.tenant]


def gives_slot(holder: SequenceRequest, request: SequenceRequest, held: Holdings, served: Served) -> bool:
    """Whether a running request gives its slot to one of the same priority that waits.

    Args:
        holder: The running request.
        request: The request that waits.
        held: What all tenants hold now.
        served: Weighted tokens computed for a tenant.
    """
    more = held.slots[holder.tenant] - held.slots[request.tenant]
    return holder.tenant != request.tenant and (
        more >= 2 or (more == 1 and _ahead(holder, request, served) > TURN_TOKENS)
    )


def gives_pages(holder: SequenceRequest, request: SequenceRequest, held: Holdings, needed: int, served: Served) -> bool:
    """Whether a running request gives its pages to one of the same priority that waits.

    Args:
        holder: The running request.
        request: The request that waits.
        held: What all tenants hold now.
        needed: Pages that `request` takes.
        served: Weighted tokens computed for a tenant.
    """
    left, then = held.pages[holder.tenant] - len(holder.pages), held.pages[request.tenant] + needed
    # Pages that are given are computed again, so a turn is as long as that is worth.
    had_its_turn = _ahead(holder, request, served) > TURN_TOKENS + holder.computed
    return holder.tenant != request.tenant and (left >= then or had_its_turn)


def slot_giver(
    request: SequenceRequest, candidates: Collection[SequenceRequest], held: Holdings, served: Served
) -> SequenceRequest | None:
    """Choose the running request that gives its slot to one that waits; None if nobody owes it one."""
    givers = [one for one in candidates if gives_slot(one, request, held, served)]
    return choose_victim(givers, held.slots) if givers else None


def page_giver(
    request: SequenceRequest,
    candidates: Collection[SequenceRequest],
    held: Holdings,
    served: Served,
    *,
    needed: int,
    lacking: int,
) -> SequenceRequest | None:
    """Choose the first running request that gives its pages to one that waits; None if the pages of all who owe it
    some are too few, so that nobody is preempted in vain.

    Args:
        request: The request that waits.
        candidates: Running requests of its priority that are not in the step yet.
        held: What all tenants hold now; changed.
        served: Weighted tokens computed for a tenant.
        needed: Pages that it takes.
        lacking: Those of them that are not free.
    """
    left, first = list(candidates), None
    while lacking > 0:
        givers = [one for one in left if gives_pages(one, request, held, needed, served)]
        if not givers:
            return None
        giver = choose_victim(givers, held.pages)
        first = first or giver
        held.remove(giver)
        left.remove(giver)
        lacking -= len(giver.pages)
    return first


def _ahead(holder: SequenceRequest, request: SequenceRequest, served: Served) -> float:
    """Weighted tokens that the holder's tenant was served beyond the other's."""
    return served(holder.tenant) - served(request.tenant)


def divide(budget: int, demands: Mapping[str, int], served: Served) -> dict[str, int]:
    """Divide tokens of a step between tenants: equal shares, and what one does not need goes to the others.

    Args:
        budget: Tokens to divide.
        demands: Tokens that each tenant could use.
        served: Weighted tokens computed for a tenant; decides who gets a token that cannot be divided.
    """
    shares = dict.fromkeys(demands, 0)
    open_tenants = sorted((tenant for tenant in demands if demands[tenant]), key=served)
    while budget and open_tenants:
        each = max(1, budget // len(open_tenants))
        for tenant in open_tenants:
            more = min(each, demands[tenant] - shares[tenant], budget)
            shares[tenant] += more
            budget -= more
        open_tenants = [tenant for tenant in open_tenants if shares[tenant] < demands[tenant]]
    return shares


def step_allowances(requests: Collection[SequenceRequest], budget: int, served: Served) -> dict[tuple[int, str], int]:
    """Return how many tokens of a step each tenant may use, by priority and tenant.

    A lower number of priority takes what it can use first, except the places of decodes behind it.

    Args:
        requests: The running requests that the step may compute.
        budget: Tokens that the step may still compute.
        served: Weighted tokens computed for a tenant.
    """
    demands: dict[int, Counter[str]] = {}
    decodes: Counter[int] = Counter()
    for request in requests:
        demands.setdefault(request.priority, Counter())[request.tenant] += request.remaining
        decodes[request.priority] += request.remaining == 1
    allowances: dict[tuple[int, str], int] = {}
    behind = decodes.total()
    for priority in sorted(demands):
        behind -= decodes[priority]
        shares = divide(max(budget - behind, min(budget, decodes[priority])), demands[priority], served)
        allowances |= {(priority, tenant): share for tenant, share in shares.items()}
        budget -= sum(shares.values())
    return allowances


def gets_own_step(request: SequenceRequest, held: Holdings, budget: int, served: Served) -> bool:
    """Whether a request that is about to be admitted computes its first token without a crowd's decodes beside it.

    It is if its whole prompt fits into the step, another tenant runs many more requests, and its own tenant was served
    no more than any other: so a tenant who sends many such requests gets no more than its share.

    Args:
        request: The request, before it is admitted and its tenant is charged for it.
        held: What all tenants hold.
        budget: Tokens that the step may still compute.
        served: Weighted tokens computed for a tenant.
    """
    if request.remaining > budget or request.output_length:
        return False
    if held.most_others(request.tenant) <= held.slots[request.tenant] + CROWD_ROWS:
        return False
    return all(served(request.tenant) <= served(other) for other, count in held.slots.items() if count)
