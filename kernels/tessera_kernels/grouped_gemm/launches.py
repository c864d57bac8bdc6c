"""All launches of `grouped_gemm`: each scheme with each tile, gated and not gated."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch
from tessera_kernels.grouped_gemm.triton import heuristic
from tessera_kernels.scaled_linear.launches import product
from tessera_kernels.triton_parts.gemm_tiles import without
from tessera_kernels.weight_only_linear.launches import SIZES, weight_arguments
from tessera_kernels.weight_only_linear.triton import weight_only_kernel

TILES = (16, 32, 64, 128)
SCHEMES = ("dense", "int4 32", "int4 128", "int4 128 zero points", "int8", "fp8", "mxfp4", "nvfp4")
"""Schemes of `weight_only_linear` that are compiled; the others differ by one more load."""
WIDE = ("dense", "int8", "fp8")
"""Schemes with tiles of 128 tokens."""
SCALED = (("int8", False), ("fp8", False), ("fp8", True))
CLAMPED = ("dense",)
"""Schemes that are compiled with the clamped gate, which adds a few instructions in any scheme."""
GATES = {1: " gated", 2: " clamped", 0: ""}
CHOSEN = 8


def _heuristics(
    tile: int, *, eight: bool, blocked: bool, gated: bool
) -> Iterator[tuple[dict[str, int], frozenset[str]]]:
    found: dict[str, tuple[dict[str, int], set[str]]] = {}
    for chip in CHIPS.values():
        how = heuristic(tile, chip, eight=eight, blocked=blocked, gated=bool(gated))
        found.setdefault(str(how), (how, set()))[1].add(chip.name)
    for how, chips in found.values():
        yield how, frozenset(chips if len(found) > 1 else ())


def launches() -> Iterator[Launch]:
    """The first product of experts is gated and reads rows of tokens; the second is not and reads assignments."""
    for tile in TILES:
        for gated, suffix in GATES.items():
            kind = f"T{tile}{suffix}"
            more = {"GROUPED": True, "DIVISOR": CHOSEN if gated else 1, "GATED": gated, "B_T": tile}
            for scheme in CLAMPED if gated == 2 else SCHEMES if tile <= 64 else WIDE:
                pointers, constants = weight_arguments(scheme, "bf16")
                pointers |= {"p_out": "*bf16", "p_rows": "*i32", "p_experts": "*i32"}
                for how, only in _heuristics(tile, eight=False, blocked=False, gated=bool(gated)):
                    sizes = dict.fromkeys(("places", *SIZES, "out_stride"), "i32")
                    yield Launch(
                        name=f"{scheme} {kind} {how['num_stages']} stages {how['num_warps']} warps",
                        kernel=weight_only_kernel,
                        signature=pointers | sizes,
                        constants={
                            **constants,
                            "INTERPRETED": False,
                            **more,
                            **without(how, "num_warps", "num_stages"),
                        },
                        num_warps=how["num_warps"],
                        num_stages=how["num_stages"],
                        matrix=True,
                        aligned=frozenset(pointers) | {"outputs", "inputs", "x_stride", "out_stride"},
                        only=only,
                    )
            for stored, blocked in () if gated == 2 else SCALED if tile <= 64 else SCALED[:2]:
                for how, only in _heuristics(tile, eight=True, blocked=blocked, gated=bool(gated)):
                    tile_of = f"{kind} {how['num_stages']} stages {how['num_warps']} warps"
                    name = f"scaled {stored}{' blocks' if blocked else ''} {tile_of}"
                    yield product(stored, blocked, how, only, name, more)
