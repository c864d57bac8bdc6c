"""Launches of `paged_attention`: decodes, drafts and prefill of common models, by dtype, head dim and option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
STORED = {**TYPES, torch.int8: "i8", torch.float8_e4m3fn: "fp8e4nv"}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "parts": {"parts": 8},
    "window, sinks": {"window": True, "sinks": True},
    "window, sinks, parts": {"window": True, "sinks": True, "parts": 8},
    "softcap": {"softcap": True},
    "tree, parts": {"tree": True, "parts": 8},
}
ROWS = {16: "decode", 32: "drafts", 64: "64 rows", 128: "prefill"}


def launches() -> Iterator[Launch]:
    """Every kind of tile at every head dim, then every option and dtype at 128, and the second pass."""
    from tessera_kernels.paged_attention import triton  # noqa: PLC0415 - Triton is needed for launches alone

    for dims in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
        for most in (1, 8, 4096):
            yield from _by_chip(triton, dims, most, torch.bfloat16, torch.bfloat16, "parts" if most == 1 else "")
    for most in (1, 8, 4096):
        for stored in (torch.int8, torch.float8_e4m3fn):
            for dims in ((128, 128), (256, 256)):
                yield from _by_chip(triton, dims, most, torch.bfloat16, stored, "parts" if most == 1 else "")
            yield from _by_chip(triton, (128, 128), most, torch.float16, stored, "parts" if most == 1 else "")
        yield from _by_chip(triton, (128, 128), most, torch.float16, torch.float16, "")
        for option in OPTIONS:
            if option and (option, most) != ("parts", 1):
                yield from _by_chip(triton, (128, 128), most, torch.bfloat16, torch.bfloat16, option)
    yield from _by_chip(triton, (128, 128), 1, torch.float32, torch.float32, "")
    for dim in (64, 128, 192, 256):
        for parts in (2, 64):
            yield _combine(dim, parts)


def _by_chip(
    triton: Any, dims: tuple[int, int], most: int, dtype: torch.dtype, stored: torch.dtype, option: str
) -> Iterator[Launch]:
    """One launch for each different configuration that the chips choose."""
    rows = triton.rows_of_tile(most, 4, max(dims), dtype, tree="tree" in option)
    chosen: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for chip in CHIPS.values():
        how = triton.config(rows, dims, dtype, stored, chip, tree="tree" in option)
        chosen.setdefault(tuple(how.items()), []).append(chip.name)
    for how, chips in chosen.items():
        yield _launch(triton, dims, rows, dtype, stored, option, dict(how), frozenset(chips))


def _launch(
    triton: Any,
    dims: tuple[int, int],
    rows: int,
    dtype: torch.dtype,
    stored: torch.dtype,
    option: str,
    how: dict[str, int],
    chips: frozenset[str],
) -> Launch:
    with_what = OPTIONS[option]
    parts = with_what.get("parts", 1)
    decode = rows == triton.MIN_TILE_ROWS
    kind, cached = TYPES[dtype], STORED[stored]
    optional = {
        "p_key_scale": "*fp32" if stored not in TYPES else None,
        "p_value_scale": "*fp32" if stored not in TYPES else None,
        "p_tiles": None if decode or "tree" in with_what else "*i32",
        "p_tree": "*u8" if "tree" in with_what else None,
        "p_sinks": f"*{kind}" if "sinks" in with_what else None,
        "p_partial": "*fp32" if parts > 1 else None,
        "p_lse": "*fp32" if parts > 1 else None,
    }
    pointers = {
        "p_query": f"*{kind}",
        "p_key": f"*{cached}",
        "p_value": f"*{cached}",
        "p_table": "*i32",
        "p_context": "*i64",
        "p_out": f"*{kind}",
        **{name: pointer for name, pointer in optional.items() if pointer is not None},
    }
    strides = ("query_stride_t", "query_stride_q", "out_stride_t", "out_stride_q")
    scalars = {"table_stride": "i32", "tree_stride": "i32", "scaling": "fp32", "window": "i32", "softcap": "fp32"}
    scalars |= {} if decode else {"rows": "i32"}
    name = f"{ROWS[rows]} {kind}{f' of {cached}' if cached != kind else ''} D{dims[0]} E{dims[1]}"
    return Launch(
        name=f"{name}{f', {option}' if option else ''} (N{how['BLOCK_N']} w{how['num_warps']} s{how['num_stages']})",
        kernel=triton.paged_attention_kernel,
        signature=pointers | dict.fromkeys(strides, "i32") | scalars,
        constants={
            **{name: None for name, pointer in optional.items() if pointer is None},
            **({"rows": 1} if decode else {}),
            **triton.constants(4, 8, dims, 16, rows),
            "BLOCK_N": how["BLOCK_N"],
            "PARTS": parts,
            "WINDOW": "window" in with_what,
            "SOFTCAP": "softcap" in with_what,
            "INTERPRETED": False,
        },
        num_warps=how["num_warps"],
        num_stages=how["num_stages"],
        matrix=dtype != torch.float32,
        aligned=frozenset(pointers) | frozenset(strides),
        minimum=89 if stored == torch.float8_e4m3fn else 80,
        narrow=f"{rows} rows of a tile" if rows < 64 else "",
        only=chips,
    )


def _combine(dim: int, parts: int) -> Launch:
    from tessera_kernels.triton_parts import split_combine  # noqa: PLC0415

    return Launch(
        name=f"second pass E{dim} of {parts} parts",
        kernel=split_combine.split_combine_kernel,
        signature={
            "p_partial": "*fp32",
            "p_lse": "*fp32",
            "p_rows": "*i32",
            "p_sinks": "*bf16",
            "p_out": "*bf16",
            "out_stride_t": "i32",
            "out_stride_q": "i32",
        },
        constants={"HEADS": 32, "PARTS": parts, "VALUE_DIM": dim, "BLOCK_E": 1 << (dim - 1).bit_length()},
        aligned=frozenset({"p_partial", "p_lse", "p_out", "out_stride_t", "out_stride_q"}),
    )
