"""Registers `latent_attention` for torch.compile and CUDA graphs, and chooses the implementation that runs.

Checks no arguments: the public function does.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import Support, triton_support, unsupported
from tessera_kernels.latent_attention import reference
from tessera_kernels.paged_attention.ragged import Ragged

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
WIDEST = 512
"""Largest rank whose tiles fit the registers of a program."""


def kernel_support(query_TQR: torch.Tensor, rope_TQO: torch.Tensor, cache_PSC: torch.Tensor) -> Support:
    """Whether the Triton kernel supports these tensors."""
    if query_TQR.shape[2] > WIDEST:
        return unsupported(f"a rank of {query_TQR.shape[2]} is wider than {WIDEST}")
    return triton_support(query_TQR, rope_TQO, cache_PSC)


def compute(
    query_TQR: torch.Tensor, rope_TQO: torch.Tensor, cache_PSC: torch.Tensor, ragged: Ragged, *, scaling: float
) -> torch.Tensor:
    """Compute `latent_attention` with Triton if it supports these tensors, else with the reference."""
    if not kernel_support(query_TQR, rope_TQO, cache_PSC).ok:
        return reference.latent_attention(query_TQR, rope_TQO, cache_PSC, ragged, scaling=scaling)
    from tessera_kernels.latent_attention import triton  # noqa: PLC0415 - a CPU needs no Triton

    return triton.latent_attention(query_TQR, rope_TQO, cache_PSC, ragged, scaling=scaling)


@torch.library.custom_op("tessera::latent_attention", mutates_args=())
def _latent_attention(
    query: torch.Tensor,
    rope: torch.Tensor,
    cache: torch.Tensor,
    page_table: torch.Tensor,
    context: torch.Tensor,
    query_counts: list[int],
    scaling: float,
) -> torch.Tensor:
    return compute(query, rope, cache, Ragged(page_table, context, list(query_counts)), scaling=scaling)


@_latent_attention.register_fake
def _(query: torch.Tensor, *_: object) -> torch.Tensor:
    return query.new_empty(query.shape)
