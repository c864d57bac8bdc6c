# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`combine` in Triton: a program for each token and block of features, without atomics.

Shape letters: T tokens, C chosen, A assignments, D features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FEATURES_PER_PROGRAM = 1024
"""Most features that one program sums."""


@triton.jit
def combine_kernel(p_outer, p_experts, p_weights, p_out, experts, features, CHOSEN: tl.constexpr, B_D: tl.constexpr):
    """Sum one block of features of one token."""
    i_token = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * B_D + tl.arange(0, B_D)
    there = o_d < features
    b_total = tl.zeros((B_D,), dtype=tl.float32)
    for i_choice in tl.static_range(CHOSEN):
        i_row = i_token * CHOSEN + i_choice
        b_expert = tl.zeros((B_D,), dtype=tl.int32) + tl.load(p_experts + i_row)
        known = there & (b_expert >= 0) & (b_expert < experts)
        weight = tl.load(p_weights + i_row)
        b_row = tl.load(p_outer + i_row * features + o_d, mask=known, other=0.0).to(tl.float32)
        b_total += tl.where(known, b_row * weight, 0.0)
    tl.store(p_out + i_token * features + o_d, b_total.to(p_out.dtype.element_ty), mask=there)


def combine(
    outer_AD: torch.Tensor,
    experts_TC: torch.Tensor,
    weights_TC: torch.Tensor,
    experts: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.moe.combine`; all tensors are contiguous."""
    (tokens, chosen), features = experts_TC.shape, outer_AD.shape[1]
    out = outer_AD.new_empty(tokens, features) if out is None else out
    if out.numel():
        block = min(FEATURES_PER_PROGRAM, triton.next_power_of_2(features))
        combine_kernel[(tokens, triton.cdiv(features, block))](
            outer_AD, experts_TC, weights_TC, out, experts, features, CHOSEN=chosen, B_D=block, num_warps=4
        )
    return out
