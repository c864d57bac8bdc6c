"""Sends requests with the same `prompt_cache_key` to the same upstream, where their common beginning is cached.

Rendezvous hashing: an upstream that comes or goes moves the keys that it gains or had, and no others. An upstream that
has much more to do than the others gives its keys to the next one meanwhile. Knows no requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

SLACK = 4
"""Requests in flight that an upstream may have more than the least loaded one and still keep its keys."""
LOAD_FACTOR = 1.25
"""Share of the mean load up to which it keeps them in any case."""


class Loaded(Protocol):
    """What the choice needs of an upstream."""

    name: str
    in_flight: int


LoadedT = TypeVar("LoadedT", bound=Loaded)


def by_affinity(upstreams: Sequence[LoadedT], key: str) -> list[LoadedT]:
    """Equally able upstreams with the one that a key belongs to in front; the others stay in their order."""
    if len(upstreams) < 2:
        return list(upstreams)
    loads = [upstream.in_flight for upstream in upstreams]
    most = max(min(loads) + SLACK, LOAD_FACTOR * (sum(loads) + 1) / len(loads))
    # The least loaded one is always among them.
    free = [upstream for upstream in upstreams if upstream.in_flight < most]
    chosen = max(free, key=lambda upstream: _weight(upstream.name, key))
    return [chosen, *(upstream for upstream in upstreams if upstream is not chosen)]


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
