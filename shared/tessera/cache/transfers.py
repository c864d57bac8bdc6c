"""Transfers between pages that have to happen before a step. Describes them; the runner carries them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Copy:
    """Copy device page `source` to device page `target`."""

    source: int
    target: int


@dataclass(frozen=True)
class Offload:
    """Copy device page `page` to host slot `slot`."""

    page: int
    slot: int


@dataclass(frozen=True)
class Fetch:
    """Copy host slot `slot` to device page `page`."""

    slot: int
    page: int


Transfer = Copy | Offload | Fetch
