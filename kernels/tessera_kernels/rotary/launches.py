"""All launches of `rotary`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch

from tessera_kernels.gate.launch import Launch

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
SIZES = ("query_heads", "key_heads", "pairs", "axes", "table_rows")
STRIDES = ("query_stride_t", "query_stride_h", "key_stride_t", "key_stride_h", "cos_stride", "sin_stride")


def launches() -> Iterator[Launch]:
    """Heads of text models and of Wan, both pairings, angles of every kind, few tokens and many."""
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - Triton is needed for launches alone

    bf16 = torch.bfloat16
    for heads, pairs in ((32, 64), (40, 64), (20, 32), (128, 32)):
        for interleaved in (False, True):
            yield _launch(64, heads, pairs, bf16, ("positions", "inverse"), interleaved=interleaved)
            yield _launch(65536, heads, pairs, bf16, ("cos", "sin"), interleaved=interleaved)
    for tokens, angles in ((64, ("positions", "inverse")), (65536, ("cos", "sin"))):
        for how, interleaved in product(triton.candidates(tokens, 64), (False, True)):
            yield _launch(tokens, 32, 64, bf16, angles, interleaved=interleaved, configuration=how)
    yield _launch(64, 40, 64, bf16, ("positions", "inverse", "axis"), interleaved=True)
    yield _launch(65536, 32, 64, bf16, ("positions", "cos", "sin"), interleaved=False)
    for dtype in (torch.float16, torch.float32):
        yield _launch(64, 32, 64, dtype, ("positions", "inverse"), interleaved=False)
        yield _launch(65536, 32, 64, dtype, ("cos", "sin"), interleaved=True)
    pointers = {"p_positions": "*i64", "p_inverse": "*fp32", "p_axis": "*i32", "p_cos": "*fp32", "p_sin": "*fp32"}
    yield Launch(
        name="tables",
        kernel=triton.tables_kernel,
        signature=pointers | {"count": "i32", "pairs": "i32", "axes": "i32", "scaling": "fp32"},
        constants={"BLOCK": triton.TABLE_BLOCK},
        tuned=False,  # it has one configuration, and its stack holds the words of 2/pi for large angles
        aligned=frozenset(pointers) | {"count", "pairs"},
    )


def _launch(
    tokens: int,
    heads: int,
    pairs: int,
    dtype: torch.dtype,
    given: tuple[str, ...],
    *,
    interleaved: bool,
    configuration: Mapping[str, int] | None = None,
) -> Launch:
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - Triton is needed for launches alone

    how = configuration or triton.config(tokens, heads, pairs, dtype)
    size = (
        f"H{heads} F{pairs} T{tokens}" if configuration is None else f"{how['BLOCK_H']} heads {how['num_warps']} warps"
    )
    kind = TYPES[dtype]
    pointers = {"positions": "i64", "inverse": "fp32", "axis": "i32", "cos": "fp32", "sin": "fp32"}
    missing: dict[str, Any] = {f"p_{name}": None for name in pointers if name not in given}
    return Launch(
        name=f"{kind} {'interleaved' if interleaved else 'halves'} {' '.join(given)} {size}",
        kernel=triton.rotary_kernel,
        signature={
            **dict.fromkeys(("p_query", "p_key"), f"*{kind}"),
            **{f"p_{name}": f"*{pointers[name]}" for name in given},
            **dict.fromkeys(SIZES + STRIDES, "i32"),
            "scaling": "fp32",
        },
        constants={
            **missing,
            "INTERLEAVED": interleaved,
            "BLOCK_H": how["BLOCK_H"],
            "BLOCK_F": 1 << (pairs - 1).bit_length(),
        },
        num_warps=how["num_warps"],
        aligned=frozenset({"p_query", "p_key", "pairs", *(f"p_{name}" for name in given), *STRIDES}),
    )
