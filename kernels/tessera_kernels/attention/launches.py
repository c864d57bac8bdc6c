"""All launches of `attention`: exact and quantized, for many queries and few, and the kernels that quantize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
SIDES = ("query", "key", "value", "out")


def launches() -> Iterator[Launch]:
    """Head dims of Wan and Whisper in bfloat16, one that is no power of two, the widest, then other dtypes."""
    for dim in (128, 64, 96, 256):
        for queries in (4096, 64):
            for lengths in (False, True) if dim == 128 else (False,):
                yield from _by_chip(dim, queries, torch.bfloat16, lengths=lengths)
    for dtype in (torch.float16, torch.float32):
        yield from _by_chip(128, 4096, dtype)
    for float8 in (False, True):
        for dim in (128, 64):
            yield from _by_chip(dim, 4096, torch.bfloat16, int8=True, float8=float8)
        yield from _by_chip(128, 64, torch.bfloat16, int8=True, float8=float8)
        yield from _by_chip(128, 4096, torch.float16, int8=True, float8=float8)
    for dim in (64, 96, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            yield _quantizer(dim, dtype, rows=128, what="queries to int8")
            yield _quantizer(dim, dtype, rows=64, what="keys to int8")
            yield _quantizer(dim, dtype, rows=64, what="values to float8")


def _by_chip(
    dim: int, queries: int, dtype: torch.dtype, *, int8: bool = False, float8: bool = False, lengths: bool = False
) -> Iterator[Launch]:
    """One launch for each configuration that `config` chooses for at least one chip."""
    from tessera_kernels.attention import triton  # noqa: PLC0415 - Triton is needed for launches alone
    from tessera_kernels.attention.kernel import attention_kernel  # noqa: PLC0415

    chosen: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for chip in CHIPS.values():
        how = triton.config(dim, queries, dtype, chip, int8=int8, float8=float8)
        chosen.setdefault(tuple(how.items()), []).append(chip.name)
    for found, chips in chosen.items():
        how = dict(found)
        kind = TYPES[dtype]
        optional = {
            "p_query_scale": "*fp32" if int8 else None,
            "p_key_scale": "*fp32" if int8 else None,
            "p_value_scale": "*fp32" if float8 else None,
            "p_lengths": "*i64" if lengths else None,
        }
        pointers = {
            "p_query": "*i8" if int8 else f"*{kind}",
            "p_key": "*i8" if int8 else f"*{kind}",
            "p_value": "*fp8e4nv" if float8 else f"*{kind}",
            "p_out": f"*{kind}",
            **{name: pointer for name, pointer in optional.items() if pointer is not None},
        }
        strides = {f"{side}_stride_{letter}": "i32" for side in SIDES for letter in "bth"}
        # Values are as given, or transposed when they were quantized: one of the two strides is 1.
        unit = "value_stride_t" if float8 else "value_stride_d"
        strides["value_stride_d"] = "i32"
        del strides[unit]
        yield Launch(
            name=f"{'many' if queries > 64 else 'few'} queries {kind}{', int8 scores' if int8 else ''}"
            f"{', float8 values' if float8 else ''}{', lengths' if lengths else ''} D{dim} "
            f"(M{how['BLOCK_M']} N{how['BLOCK_N']} w{how['num_warps']} s{how['num_stages']})",
            kernel=attention_kernel,
            signature=pointers | strides | {"queries": "i32", "keys": "i32", "scaling": "fp32"},
            constants={
                **{name: None for name, pointer in optional.items() if pointer is None},
                unit: 1,
                "HEADS": 40,
                "DIM": dim,
                "BLOCK_D": triton.block(dim),
                "QUERY_ROWS": triton.QUERY_ROWS,
                "KEY_ROWS": triton.KEY_ROWS,
                "FLOAT8": float8,
                "INTERPRETED": False,
                "BLOCK_M": how["BLOCK_M"],
                "BLOCK_N": how["BLOCK_N"],
            },
            num_warps=how["num_warps"],
            num_stages=how["num_stages"],
            matrix=dtype != torch.float32,
            aligned=frozenset(pointers) | frozenset(strides),
            minimum=89 if float8 else 80,
            amd=not float8,
            only=frozenset(chips),
        )


def _quantizer(dim: int, dtype: torch.dtype, *, rows: int, what: str) -> Launch:
    from tessera_kernels.attention import quantize, triton  # noqa: PLC0415

    float8 = what.startswith("values")
    optional: dict[str, Any] = {
        "p_center": "*fp32" if what.startswith("keys") else None,
        "p_channel_scale": "*fp32" if float8 else None,
        "p_scale": None if float8 else "*fp32",
        "p_lengths": None,
    }
    pointers = {
        "p_x": f"*{TYPES[dtype]}",
        "p_out": "*fp8e4nv" if float8 else "*i8",
        **{name: pointer for name, pointer in optional.items() if pointer is not None},
    }
    strides = ("stride_b", "stride_t", "stride_h")
    return Launch(
        name=f"{what} of {TYPES[dtype]} D{dim}",
        kernel=quantize.quantize_kernel,
        signature=pointers | dict.fromkeys(strides, "i32") | {"tokens": "i32", "padded": "i32"},
        constants={
            **{name: None for name, pointer in optional.items() if pointer is None},
            "HEADS": 40,
            "DIM": dim,
            "ROWS": rows,
            "BLOCK_D": 1 << (triton.block(dim) - 1).bit_length(),
            "FLOAT8": float8,
            "INTERPRETED": False,
        },
        num_warps=8,
        aligned=frozenset(pointers) | frozenset(strides),
        minimum=89 if float8 else 80,
        amd=not float8,
    )
