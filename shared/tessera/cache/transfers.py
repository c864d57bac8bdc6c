"""What has to move between pages before a step. Says it; does not do it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Copy:
    """Page `source` → page `target`, both on the device."""

    source: int
    target: int


@dataclass(frozen=True)
class Offload:
    """Device page → host slot."""

    page: int
    slot: int


@dataclass(frozen=True)
class Fetch:
    """Host slot → device page."""

    slot: int
    page: int


Transfer = Copy | Offload | Fetch
