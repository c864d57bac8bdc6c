"""`paged_attention` as a registered operator for torch.compile, and the choice between Triton and the reference.

Does not validate arguments: the public function does.
"""

from __future__ import annotations

import torch

from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.paged_attention import reference
from tessera_kernels.paged_attention.ragged import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

MAX_HEAD_DIM = 256
"""Largest head dim whose tiles fit a program."""
DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes of queries that the kernel takes."""


def kernel_support(query_TQD: torch.Tensor, cache: PagedKV) -> Support:
    """Whether the Triton kernel supports these tensors, and why not."""
    dims = (query_TQD.shape[2], cache.value_PSHE.shape[3])
    if max(dims) > MAX_HEAD_DIM:
        return unsupported(f"head dims of {dims} are wider than {MAX_HEAD_DIM}")
    if query_TQD.dtype not in DTYPES:
        return unsupported(f"queries are {query_TQD.dtype}")
    if query_TQD.shape[1] // cache.key_PSHD.shape[2] > 128:
        return unsupported("more than 128 query heads share a key-value head")
    if cache.key_PSHD.dtype == torch.float8_e4m3fn and not has_float8(query_TQD.device):
        return unsupported("the device has no float8")
    if not all(tensor.is_contiguous() for tensor in cache.tensors):
        return unsupported("the cache is not contiguous")
    return triton_support(query_TQD, *cache.tensors)


def compute(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
    tree_BNN: torch.Tensor | None,
) -> torch.Tensor:
    """Compute `paged_attention` with Triton if it supports these tensors, else with the reference."""
    if not kernel_support(query_TQD, cache).ok:
        return reference.paged_attention(
            query_TQD,
            cache,
            ragged,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks_Q=sinks_Q,
            tree_BNN=tree_BNN,
        )
    from tessera_kernels.paged_attention import triton  # noqa: PLC0415 - a CPU needs no Triton

    return triton.paged_attention(
        query_TQD,
        cache,
        ragged.page_table_BM,
        ragged.context_B,
        ragged.query_counts,
        scaling=scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks_Q=sinks_Q,
        tree_BNN=tree_BNN,
    )


def call_registered(
    query_TQD: torch.Tensor,
    cache: PagedKV,
    ragged: Ragged,
    *,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
    tree_BNN: torch.Tensor | None,
) -> torch.Tensor:
    """Call the registered operator, which `torch.compile` keeps as one node of its graph."""
    out: torch.Tensor = torch.ops.tessera.paged_attention(
        query_TQD,
        cache.key_PSHD,
        cache.value_PSHE,
        cache.key_scale_PSH,
        cache.value_scale_PSH,
        ragged.page_table_BM,
        ragged.context_B,
        ragged.query_counts,
        scaling,
        sliding_window,
        softcap,
        sinks_Q,
        tree_BNN,
    )
    return out


@torch.library.custom_op("tessera::paged_attention", mutates_args=())
def _paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    page_table: torch.Tensor,
    context: torch.Tensor,
    query_counts: list[int],
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    tree: torch.Tensor | None,
) -> torch.Tensor:
    return compute(
        query,
        PagedKV(key, value, key_scale, value_scale),
        Ragged(page_table, context, list(query_counts)),
        scaling=scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks_Q=sinks,
        tree_BNN=tree,
    )


@_paged_attention.register_fake
def _(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, *_: object) -> torch.Tensor:
    return query.new_empty(*query.shape[:2], value.shape[-1])
