"""Writing new keys and values into their slots of the paged cache, quantized where the cache is.

Does not know pages or requests: a slot is a row of the cache seen as `[pages * page_size, ...]`.
"""

from __future__ import annotations

import torch

from tessera_kernels.kv_store import reference
from tessera_kernels.paged_kv import PagedKV

__all__ = ["kv_store"]


def kv_store(key_THD: torch.Tensor, value_THE: torch.Tensor, cache: PagedKV, slots_T: torch.Tensor) -> None:
    """Write row t of `key` and `value` into slot `slots[t]` of the cache, in place.

    Args:
        key_THD: new keys, [tokens, kv heads, head dim]; the cache's dtype unless it is quantized.
        value_THE: new values, [tokens, kv heads, value dim]; the value dim may differ from the head dim.
        cache: contiguous.
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
    reference.kv_store(key_THD, value_THE, cache, slots_T)
