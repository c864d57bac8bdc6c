"""`kv_store` in plain torch: an indexed copy, which is also the fast way on a CPU."""

from __future__ import annotations

import torch

from tessera_kernels.storage.paged_kv import PagedKV, quantize


def kv_store(key_THD: torch.Tensor, value_THE: torch.Tensor, cache: PagedKV, slots_T: torch.Tensor) -> None:
    """Reference of `tessera_kernels.kv_store.kv_store`."""
    for new, stored, scales in (
        (key_THD, cache.key_PSHD, cache.key_scale_PSH),
        (value_THE, cache.value_PSHE, cache.value_scale_PSH),
    ):
        elements = new
        if scales is None and new.dtype != stored.dtype:
            largest = torch.finfo(stored.dtype).max
            # Clamp after the conversion: bfloat16 cannot represent float16's largest value.
            elements = new.to(stored.dtype).clamp_(-largest, largest)
        if scales is not None:
            elements, scale_TH = quantize(new, stored.dtype)
            scales.flatten(0, 1).index_copy_(0, slots_T, scale_TH)
        # Viewed as int8: not every torch operation supports float8.
        kind = torch.int8 if stored.dtype.itemsize == 1 else stored.dtype
        stored.flatten(0, 1).view(kind).index_copy_(0, slots_T, elements.view(kind))
