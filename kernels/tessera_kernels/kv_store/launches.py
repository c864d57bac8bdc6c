"""Launches of `kv_store`: every pair of the new values' dtype and the cache's dtype."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tessera_kernels.gate.launch import Launch
from tessera_kernels.kv_store.triton import constants, kv_store_kernel

_STORED = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_QUANTIZED = {"i8": torch.int8, "fp8e4nv": torch.float8_e4m3fn}
_STRIDES = ("key_stride_t", "key_stride_h", "value_stride_t", "value_stride_h")


def launches() -> Iterator[Launch]:
    """Head dims of common models, one that is not a power of two, and values narrower than keys."""
    stored = [(kind, kind, dtype) for kind, dtype in _STORED.items()]
    stored += [(new, kind, dtype) for kind, dtype in _QUANTIZED.items() for new in _STORED]
    for new, kind, dtype in stored:
        for heads, dim, value_dim in ((8, 128, 128), (2, 64, 64), (4, 256, 256), (8, 96, 96), (16, 192, 128)):
            pointers = {
                "p_key": f"*{new}",
                "p_value": f"*{new}",
                "p_key_cache": f"*{kind}",
                "p_value_cache": f"*{kind}",
                "p_slots": "*i64",
            }
            fixed: dict[str, int | float | bool | None] = {**constants(heads, dim, value_dim, dtype)}
            scales = ("p_key_scale", "p_value_scale")
            if kind in _QUANTIZED:
                pointers |= dict.fromkeys(scales, "*fp32")
            else:
                fixed |= dict.fromkeys(scales)
            yield Launch(
                name=f"{new} to {kind} H{heads} D{dim} E{value_dim}",
                kernel=kv_store_kernel,
                signature=pointers | dict.fromkeys(_STRIDES, "i32"),
                constants=fixed,
                aligned=frozenset(pointers) | frozenset(_STRIDES),
                minimum=89 if kind == "fp8e4nv" else 80,
            )
