"""All launches of `latent_attention`: 16 heads (DeepSeek-V2-Lite) and 128 (DeepSeek-V3), with and without a split."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def launches() -> Iterator[Launch]:
    """Rank 512 and rotary dim 64, which all models of DeepSeek have."""
    for heads in (128, 16):
        for parts in (8, 1):
            yield from _by_chip(heads, torch.bfloat16, parts)
    yield from _by_chip(128, torch.float16, 8)
    yield from _by_chip(16, torch.float32, 8)


def _by_chip(heads: int, dtype: torch.dtype, parts: int) -> Iterator[Launch]:
    from tessera_kernels.latent_attention import triton  # noqa: PLC0415 - Triton is needed for launches alone

    chosen: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for chip in CHIPS.values():
        chosen.setdefault(tuple(triton.config(heads, 512, dtype, chip).items()), []).append(chip.name)
    for found, chips in chosen.items():
        how, kind = dict(found), TYPES[dtype]
        pointers = {
            "p_query": f"*{kind}",
            "p_rope": f"*{kind}",
            "p_cache": f"*{kind}",
            "p_table": "*i32",
            "p_context": "*i64",
            "p_partial": "*fp32" if parts > 1 else f"*{kind}",
            **({"p_lse": "*fp32"} if parts > 1 else {}),
        }
        strides = ("query_stride_t", "query_stride_q", "rope_stride_t", "rope_stride_q")
        yield Launch(
            name=f"H{heads} {kind} of {parts} parts "
            f"(M{how['BLOCK_M']} N{how['BLOCK_N']} w{how['num_warps']} s{how['num_stages']})",
            kernel=triton.latent_attention_kernel,
            signature=pointers | dict.fromkeys(strides, "i32") | {"table_stride": "i32", "scaling": "fp32"},
            constants={
                **({} if parts > 1 else {"p_lse": None}),
                "p_rows": None,
                "rows": 1,
                "HEADS": heads,
                "RANK": 512,
                "ROPE": 64,
                "PAGE": 16,
                "PARTS": parts,
                "BLOCK_R": 512,
                "BLOCK_O": 64,
                "INTERPRETED": False,
                "BLOCK_M": how["BLOCK_M"],
                "BLOCK_N": how["BLOCK_N"],
            },
            num_warps=how["num_warps"],
            num_stages=how["num_stages"],
            matrix=dtype != torch.float32,
            aligned=frozenset(pointers) | frozenset(strides),
            narrow=f"{how['BLOCK_M']} heads of a tile" if how["BLOCK_M"] < 64 else "",
            only=frozenset(chips),
        )
