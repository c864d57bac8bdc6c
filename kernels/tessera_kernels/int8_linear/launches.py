"""Launches of `int8_linear` that are not among those of `scaled_linear`: those with outlier columns."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.gate.launch import Launch
from tessera_kernels.scaled_linear.launches import heuristics, product


def launches() -> Iterator[Launch]:
    """One launch for each tile of the heuristic."""
    for tile, how, only in heuristics(integer=True):
        yield product("int8", False, how, only, f"columns in float {tile}", {"COLUMNS": True})
