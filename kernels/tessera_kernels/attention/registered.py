"""Registers `attention` for torch.compile and CUDA graphs, and chooses the implementation that runs.

Checks no arguments: the public function does.
"""

from __future__ import annotations

import torch

from tessera_kernels.attention import reference
from tessera_kernels.chips import has_float8
from tessera_kernels.dispatch import Support, triton_support, unsupported

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
WIDEST = 256
"""Largest head dim whose tiles fit the registers of a program."""


def kernel_support(query_BTHD: torch.Tensor, key_BSHD: torch.Tensor, value_BSHD: torch.Tensor) -> Support:
    """Whether the Triton kernel supports these tensors."""
    if query_BTHD.shape[3] > WIDEST:
        return unsupported(f"a head dim of {query_BTHD.shape[3]} is wider than {WIDEST}")
    return triton_support(query_BTHD, key_BSHD, value_BSHD)


def compute(
    query_BTHD: torch.Tensor,
    key_BSHD: torch.Tensor,
    value_BSHD: torch.Tensor,
    *,
    scaling: float,
    lengths_B: torch.Tensor | None,
    int8_scores: bool,
    float8_values: bool,
) -> torch.Tensor:
    """Compute `attention` with Triton if it supports these tensors, quantized only as far as the device can."""
    if not kernel_support(query_BTHD, key_BSHD, value_BSHD).ok:
        return reference.attention(query_BTHD, key_BSHD, value_BSHD, scaling=scaling, lengths_B=lengths_B)
    from tessera_kernels.attention import triton  # noqa: PLC0415 - a CPU needs no Triton

    quantized = int8_scores and query_BTHD.dtype != torch.float32
    known = has_float8(query_BTHD.device) and not torch.version.hip
    return triton.attention(
        query_BTHD,
        key_BSHD,
        value_BSHD,
        scaling=scaling,
        lengths_B=lengths_B,
        int8_scores=quantized,
        float8_values=quantized and float8_values and known,
    )


@torch.library.custom_op("tessera::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    lengths: torch.Tensor | None,
    int8_scores: bool,
    float8_values: bool,
) -> torch.Tensor:
    return compute(
        query,
        key,
        value,
        scaling=scaling,
        lengths_B=lengths,
        int8_scores=int8_scores,
        float8_values=float8_values,
    ).contiguous()


@_attention.register_fake
def _(query: torch.Tensor, *_: object) -> torch.Tensor:
    return query.new_empty(query.shape)
