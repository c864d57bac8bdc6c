"""All launches of `weight_only_linear`: each format with each tile that the heuristic chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch
from tessera_kernels.storage.quantized_weight import NIBBLES
from tessera_kernels.triton_parts.gemm_tiles import ELEMENTS_PER_SUM, add_parts_kernel, without
from tessera_kernels.weight_only_linear.bench import configs
from tessera_kernels.weight_only_linear.gemv import gemv_kernel
from tessera_kernels.weight_only_linear.triton import (
    NO_ZERO,
    OFFSETS,
    ZERO_POINTS,
    heuristic,
    weight_only_kernel,
)

TOKENS = (1, 2, 16, 32, 64, 128, 8192)
"""Numbers of tokens, one for each kind of configuration that the heuristic chooses."""
KINDS: dict[str, tuple[str, int, int, str, str]] = {
    "int4 32": ("int4", 32, NO_ZERO, "*u8", "*fp16"),
    "int4 128": ("int4", 128, NO_ZERO, "*u8", "*fp16"),
    "int4 128 zero points": ("int4", 128, ZERO_POINTS, "*u8", "*fp16"),
    "int4 32 offsets": ("int4", 32, OFFSETS, "*u8", "*fp16"),
    "int8": ("int8", 0, NO_ZERO, "*i8", "*fp32"),
    "int8 32": ("int8", 32, NO_ZERO, "*i8", "*fp16"),
    "fp8": ("fp8", 0, NO_ZERO, "*u8", "*fp32"),
    "fp8 128": ("fp8", 128, NO_ZERO, "*u8", "*fp32"),
    "mxfp4": ("mxfp4", 32, NO_ZERO, "*u8", "*u8"),
    "nvfp4": ("nvfp4", 16, NO_ZERO, "*u8", "*u8"),
    "dense": ("dense", 0, NO_ZERO, "", ""),
}
"""Weights by name: format, group (0: one scale for each output), kind of zero, types of elements and of scales."""
SIZES = ("tokens", "outputs", "inputs", "groups", "steps", "x_stride")


def weight_arguments(kind: str, dtype: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of the pointers, and the constants, that every kernel takes for a kind of weight."""
    form, group, zero, elements, scales = KINDS[kind]
    elements = elements or f"*{dtype}"
    run = min(group, 64) if group else 64 if dtype != "fp32" else 32
    pointers = {
        "p_x": f"*{dtype}",
        "p_elements": elements,
        "p_scale": scales or elements,
        "p_zero": {NO_ZERO: elements, ZERO_POINTS: "*u8", OFFSETS: "*fp16"}[zero],
        "p_tensor_scale": "*fp32" if form == "nvfp4" else elements,
        "p_bias": f"*{dtype}",
    }
    constants = {
        "FORMAT": form,
        "ZERO": zero,
        "SCALED": bool(group),
        "TENSOR_SCALE": form == "nvfp4",
        "BIAS": True,
        "RUN": run,
        "GROUP": group or run,
        "EVEN": True,
    }
    return pointers, constants


def _launch(kind: str, dtype: str, tokens: int, how: Mapping[str, int], only: frozenset[str]) -> Launch:
    pointers, constants = weight_arguments(kind, dtype)
    splits = how["SPLITS"]
    pointers["p_out"] = "*fp32" if splits > 1 else f"*{dtype}"
    sizes = dict.fromkeys(SIZES, "i32")
    warps, stages = how["num_warps"], how["num_stages"]
    tile = without(how, "GEMV", "num_warps", "num_stages", "maxnreg")
    gemv, matrix = bool(how["GEMV"]), dtype != "fp32" and not how["GEMV"]
    if gemv:
        constants |= {"T": tokens, "STAGES": stages}
    else:
        pointers |= {"p_rows": f"*{dtype}", "p_experts": f"*{dtype}"}
        sizes |= {"places": "i32", "out_stride": "i32"}
        constants |= {"GROUPED": False, "DIVISOR": 1, "GATED": False, "INTERPRETED": False}
    aligned = {"outputs", "inputs", "x_stride", "out_stride"} & set(sizes)
    registers = how.get("maxnreg", 0)
    return Launch(
        name=f"{kind} {dtype} {'gemv' if gemv else 'T' + str(how['B_T'])}{'' if gemv else ' N' + str(how['B_N'])} "
        f"of {tokens}{f' in {splits} parts' if splits > 1 else ''}{f' {stages} stages' if only else ''}"
        f"{f' {registers} registers' if registers else ''}",
        kernel=gemv_kernel if gemv else weight_only_kernel,
        signature=pointers | sizes,
        constants=constants | tile,
        num_warps=warps,
        num_stages=stages,
        registers=registers,
        matrix=matrix,
        tuned=dtype != "fp32",
        aligned=frozenset(pointers) | aligned,
        only=only,
    )


def _heuristics(kind: str, tokens: int, outputs: int) -> Iterator[tuple[dict[str, int], frozenset[str]]]:
    """Configurations that the heuristic chooses, each with the chips that use it."""
    group = KINDS[kind][1]
    chosen: dict[str, set[str]] = {}
    found: dict[str, dict[str, int]] = {}
    for chip in CHIPS.values():
        # The same number of multiprocessors for every chip, because the split of sums cannot fail to compile.
        how = heuristic(tokens, outputs, 4096, min(group, 64) if group else 64, chip, 132, invariant=False)
        found[str(how)] = how
        chosen.setdefault(str(how), set()).add(chip.name)
    for name, how in found.items():
        yield how, frozenset(chosen[name] if len(found) > 1 else ())


def launches() -> Iterator[Launch]:
    """A layer of 4096 inputs and outputs, whose sums are split, and one so wide that they are not."""
    for kind, (form, *_) in KINDS.items():
        asked = [("bf16", tokens, 4096) for tokens in TOKENS]
        if form in NIBBLES:
            asked += [("bf16", 2, 151936), ("bf16", 16, 151936)]
        if kind in {"int4 128", "dense"}:
            asked += [("fp16", 16, 4096), ("fp16", 8192, 4096)]
        if kind == "int4 128":
            asked += [("fp32", 16, 4096)]
        if kind == "int4 128":
            # Configurations to tune without split sums, because a split changes only where sums are written.
            tried = [(tokens, how) for tokens in (8, 64) for how in configs(tokens) if how["SPLITS"] == 1]
            for tokens, how in tried:
                name = f"tuned for {tokens}: {' '.join(f'{key}={value}' for key, value in how.items())}"
                roomy = frozenset(chip.name for chip in CHIPS.values() if chip.shared > 2**16)
                yield replace(_launch(kind, "bf16", tokens, how, roomy), name=name, tuned=False)
        for dtype, tokens, outputs in asked:
            for how, only in _heuristics(kind, tokens, outputs):
                yield _launch(kind, dtype, tokens, how, only)
    for splits in (2, 4, 8, 16):
        yield Launch(
            name=f"add {splits} parts",
            kernel=add_parts_kernel,
            signature={"p_parts": "*fp32", "p_bias": "*bf16", "p_out": "*bf16", "elements": "i32", "outputs": "i32"},
            constants={"SPLITS": splits, "BIAS": True, "BLOCK": ELEMENTS_PER_SUM},
            aligned=frozenset({"p_parts", "p_bias", "p_out", "elements", "outputs"}),
        )
