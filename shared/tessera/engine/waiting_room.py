"""Who may still come to a full waiting room: nobody's requests keep the others out. Knows no queue."""

from __future__ import annotations

from collections.abc import Mapping


def takes(tenant: str, waiting: Mapping[str, int], most: int, ahead: int | None = None) -> bool:
    """Whether a request may come to a waiting room.

    It may while fewer than `most` wait. After that a tenant who has less than an equal share of the places still may,
    up to twice as many requests together.

    Args:
        tenant: who comes.
        waiting: requests that wait, by tenant.
        most: places of the room.
        ahead: requests that the new one would wait behind; all by default.
    """
    ahead = sum(waiting.values()) if ahead is None else ahead
    if ahead < most:
        return True
    others = sum(1 for other, count in waiting.items() if count and other != tenant)
    return others > 0 and waiting.get(tenant, 0) < most // (1 + others) and ahead < 2 * most
