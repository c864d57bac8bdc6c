"""`kv_store` in plain torch: an indexed copy, which is also the fast way on a CPU."""

from __future__ import annotations

import torch


def kv_store(
    key_THD: torch.Tensor,
    value_THE: torch.Tensor,
    key_cache_PSHD: torch.Tensor,
    value_cache_PSHE: torch.Tensor,
    slots_T: torch.Tensor,
) -> None:
    """See `tessera_kernels.kv_store.kv_store`."""
    key_cache_PSHD.flatten(0, 1).index_copy_(0, slots_T, key_THD)
    value_cache_PSHE.flatten(0, 1).index_copy_(0, slots_T, value_THE)
