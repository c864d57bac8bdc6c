"""Writes new keys and values into their slots of the paged cache, quantized if the cache is.

Knows no pages and no requests: a slot is a row of the cache viewed as `[pages * page_size, ...]`.

Shape letters: T tokens, H key-value heads, D head dim, E value dim.
"""

from __future__ import annotations

import torch

from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import triton_support
from tessera_kernels.kv_store import reference
from tessera_kernels.storage.paged_kv import PagedKV

__all__ = ["kv_store"]


def kv_store(key_THD: torch.Tensor, value_THE: torch.Tensor, cache: PagedKV, slots_T: torch.Tensor) -> None:
    """Write row t of `key` and `value` into slot `slots[t]` of the cache, in place.

    Args:
        key_THD: new keys, [tokens, kv heads, head dim], in the cache's dtype. A quantized cache takes any float dtype;
            a float16 cache on a CPU also takes float32 and bfloat16, clamped to its range.
        value_THE: new values, [tokens, kv heads, value dim]; the value dim may differ from the head dim.
        cache: keys and values, contiguous.
        slots_T: int64, each in [0, pages * page size), all different.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    if key_THD.shape[1:] != cache.key_PSHD.shape[2:] or value_THE.shape[1:] != cache.value_PSHE.shape[2:]:
        raise ValueError(
            f"keys {tuple(key_THD.shape)} and values {tuple(value_THE.shape)} do not fit caches "
            f"{tuple(cache.key_PSHD.shape)} and {tuple(cache.value_PSHE.shape)}"
        )
    if slots_T.dtype != torch.int64 or slots_T.shape != key_THD.shape[:1]:
        raise ValueError(
            f"slots must be int64 of shape {tuple(key_THD.shape[:1])}, not {slots_T.dtype} {slots_T.shape}"
        )
    if value_THE.shape[0] != key_THD.shape[0]:
        raise ValueError(f"as many values as keys are stored, not {value_THE.shape[0]} and {key_THD.shape[0]}")
    stored = cache.key_PSHD.dtype
    other = key_THD.dtype in {torch.float32, torch.bfloat16}
    converts = stored == torch.float16 and other and key_THD.device.type == "cpu"
    expected = key_THD.dtype if converts else stored
    same = key_THD.dtype == value_THE.dtype == expected and stored == cache.value_PSHE.dtype
    if cache.key_scale_PSH is None and not same:
        raise ValueError(
            f"a cache that is not quantized stores its own dtype {stored}, not {key_THD.dtype} and {value_THE.dtype}"
        )
    if not all(tensor.is_contiguous() for tensor in cache.tensors):
        raise ValueError("the cache must be contiguous: a slot is a row of it")
    if torch.compiler.is_compiling():
        torch.ops.tessera.kv_store(
            key_THD,
            value_THE,
            cache.key_PSHD,
            cache.value_PSHE,
            cache.key_scale_PSH,
            cache.value_scale_PSH,
            slots_T,
        )
    elif key_THD.device.type == "cpu":
        reference.kv_store(key_THD, value_THE, cache, slots_T)
    else:
        _store(key_THD, value_THE, cache, slots_T)


def _store(key_THD: torch.Tensor, value_THE: torch.Tensor, cache: PagedKV, slots_T: torch.Tensor) -> None:
    """Store with Triton if it supports these tensors, else with the reference."""
    representable = cache.key_PSHD.dtype != torch.float8_e4m3fn or has_float8(key_THD.device)
    if representable and triton_support(key_THD, value_THE, slots_T, *cache.tensors).ok:
        from tessera_kernels.kv_store import triton  # noqa: PLC0415 - a CPU needs no Triton

        triton.kv_store(key_THD, value_THE, cache, slots_T)
    else:
        reference.kv_store(key_THD, value_THE, cache, slots_T)


@torch.library.custom_op("tessera::kv_store", mutates_args={"key_cache", "value_cache", "key_scale", "value_scale"})
def _kv_store(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    slots: torch.Tensor,
) -> None:
    _store(key, value, PagedKV(key_cache, value_cache, key_scale, value_scale), slots)


@_kv_store.register_fake
def _(*_: torch.Tensor | None) -> None:
    return None
