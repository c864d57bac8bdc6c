"""Every way in which `int8_linear` is launched, as far as `scaled_linear` does not launch it: with columns in float."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.launches import Launch
from tessera_kernels.scaled_linear.launches import heuristics, product


def launches() -> Iterator[Launch]:
    """By tile."""
    for tokens in (16, 64, 128, 8192):
        for how, only in heuristics(tokens, whole=True):
            stages = f" {how['num_stages']} stages" if only else ""
            name = f"columns in float T{how['B_T']} N{how['B_N']}{stages}"
            yield product("int8", False, how, only, name, {"COLUMNS": True})
