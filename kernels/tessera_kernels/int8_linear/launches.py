"""Every way in which `int8_linear` is launched, as far as `scaled_linear` does not launch it: with columns in float."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.gate.launch import Launch
from tessera_kernels.scaled_linear.launches import heuristics, product


def launches() -> Iterator[Launch]:
    """By tile."""
    for tile, how, only in heuristics(integer=True):
        yield product("int8", False, how, only, f"columns in float {tile}", {"COLUMNS": True})
