"""All launches of `scaled_linear`: each kind of scales with each tile that the heuristic chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch
from tessera_kernels.scaled_linear.quantize import BLOCKS_PER_PROGRAM, quantize_kernel, warps_for
from tessera_kernels.scaled_linear.triton import heuristic, scaled_kernel
from tessera_kernels.storage.paged_kv import LARGEST
from tessera_kernels.storage.scaled_weight import BLOCK
from tessera_kernels.triton_parts.gemm_tiles import without

STORED = {"int8": "i8", "fp8": "fp8e4nv"}
QUANTIZED = ((128, False, False), (4096, True, False), (16384, False, False), (4096, False, True))
"""Launches of `quantize_kernel`: width of a row, whether there are factors, whether the scale is given."""
TOKENS = (16, 64, 128, 8192)
"""Numbers of tokens, one for each kind of configuration that the heuristic chooses."""
SIZES = ("tokens", "outputs", "inputs", "exact_stride", "out_stride")


def product(
    kind: str,
    blocked: bool,
    how: Mapping[str, int],
    only: frozenset[str],
    name: str,
    more: Mapping[str, Any] | None = None,
) -> Launch:
    """A launch of `scaled_kernel`.

    Args:
        kind: `int8` or `fp8`.
        blocked: whether scales are by block.
        how: the launch configuration.
        only: names of the chips that use it; empty for all.
        name: name of the launch.
        more: constants that differ from those of a plain linear layer.
    """
    stored = f"*{STORED[kind]}"
    pointers = {
        "p_x": stored,
        "p_w": stored,
        "p_x_scale": "*fp32",
        "p_w_scale": "*fp32",
        "p_bias": "*bf16",
        "p_exact": "*bf16",
        "p_columns": "*i64",
        "p_column_weights": "*fp32",
        "p_out": "*fp32" if how["SPLITS"] > 1 else "*bf16",
        "p_rows": "*i32",
        "p_experts": "*i32",
    }
    tile = without(how, "num_warps", "num_stages")
    plain = {
        "ALIGNED": True,
        "COLUMNS": False,
        "EVEN": True,
        "GROUPED": False,
        "DIVISOR": 1,
        "GATED": False,
        "INTERPRETED": False,
    }
    return Launch(
        name=name,
        kernel=scaled_kernel,
        signature=pointers | dict.fromkeys(("places", "columns", *SIZES), "i32"),
        constants={"BLOCKED": blocked, "BIAS": True, **plain, **(more or {}), **tile},
        num_warps=how["num_warps"],
        num_stages=how["num_stages"],
        matrix=True,
        aligned=frozenset(pointers) | {"outputs", "inputs", "exact_stride", "out_stride"},
        minimum=89 if kind == "fp8" else 80,
        only=only,
    )


def heuristics(*, integer: bool, blocked: bool = False) -> Iterator[tuple[str, dict[str, int], frozenset[str]]]:
    """Configurations of the heuristic for 4096 inputs and outputs: name, configuration, and chips that use it."""
    found: dict[str, tuple[dict[str, int], set[str]]] = {}
    for tokens in TOKENS:
        for chip in CHIPS.values():
            how = heuristic(tokens, 4096, 4096, chip, 132, invariant=False, integer=integer, blocked=blocked)
            found.setdefault(str(how), (how, set()))[1].add(chip.name)
    for how, chips in found.values():
        name = f"T{how['B_T']} N{how['B_N']} {how['num_stages']} stages"
        yield name, how, frozenset(chips if len(chips) < len(CHIPS) else ())


def launches() -> Iterator[Launch]:
    """Products by tile, and quantizing of tokens by width."""
    for kind, blocked in (("int8", False), ("fp8", False), ("fp8", True), ("int8", True)):
        for tile, how, only in heuristics(integer=kind == "int8", blocked=blocked):
            yield product(kind, blocked, how, only, f"{kind}{' blocks' if blocked else ''} {tile}")
    for dtype, kind in ((torch.int8, "int8"), (torch.float8_e4m3fn, "fp8")):
        for width, factor, given in QUANTIZED:
            yield Launch(
                name=f"round {width} to {kind}{' with factors' if factor else ''}{' by a scale' if given else ''}",
                kernel=quantize_kernel,
                signature={
                    "p_x": "*bf16",
                    "p_factor": "*fp32",
                    "p_given": "*fp32",
                    "p_out": f"*{STORED[kind]}",
                    "p_scale": "*fp32",
                    "inputs": "i32",
                    "blocks": "i32",
                    "x_stride": "i32",
                },
                constants={
                    "FACTOR": factor,
                    "GIVEN": given,
                    "LARGEST": LARGEST[dtype],
                    "INTEGER": kind == "int8",
                    "INTERPRETED": False,
                    "BLOCK_K": width,
                    "B_J": BLOCKS_PER_PROGRAM if width == BLOCK else 1,
                },
                num_warps=warps_for(width * (BLOCKS_PER_PROGRAM if width == BLOCK else 1)),
                aligned=frozenset({"p_x", "p_factor", "p_given", "p_out", "p_scale", "inputs", "x_stride"}),
                minimum=89 if kind == "fp8" else 80,
            )
