# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The second pass of attention with split positions: combines the parts of a row. Imports Triton.

Each part is a softmax over its own positions; its weight is the exponential of its logsumexp (to base 2). Parts are
added in their order, so the same parts give the same bits. Knows nothing of which positions a part covers.

Shape letters: T rows of the output, R split rows, C parts, Q query heads, E value dim.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def split_combine_kernel(
    p_partial,
    p_lse,
    p_rows,
    p_sinks,
    p_out,
    out_stride_t,
    out_stride_q,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Combine the parts of one head of one row."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    split = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1)
    row = split if p_rows is None else tl.load(p_rows + split).to(tl.int64)
    o_c = tl.arange(0, PARTS)
    o_e = tl.arange(0, BLOCK_E)
    part = (split * PARTS + o_c) * HEADS + i_q
    b_lse = tl.load(p_lse + part)
    largest = tl.max(b_lse, axis=0)
    if p_sinks is not None:
        sink = tl.load(p_sinks + i_q).to(tl.float32) * LOG2_E
        largest = tl.maximum(largest, sink)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    b_weight = tl.exp2(b_lse - largest)
    total = tl.sum(b_weight, axis=0)
    if p_sinks is not None:
        total += tl.exp2(sink - largest)
    # A part without positions wrote nothing: its memory may hold anything.
    written = (b_lse != float("-inf"))[:, None] & (o_e < VALUE_DIM)[None, :]
    b_partial = tl.load(p_partial + part[:, None] * VALUE_DIM + o_e[None, :], mask=written, other=0)
    b_out = tl.sum(b_partial * b_weight[:, None], axis=0) / total
    p_to = p_out + row * out_stride_t + i_q * out_stride_q + o_e
    tl.store(p_to, b_out.to(p_out.dtype.element_ty), mask=o_e < VALUE_DIM)


def split_combine(
    partial_RCQE: torch.Tensor,
    lse_RCQ: torch.Tensor,
    rows_R: torch.Tensor | None,
    sinks_Q: torch.Tensor | None,
    out_TQE: torch.Tensor,
) -> None:
    """Combine parts and write rows of `out`.

    Args:
        partial_RCQE: float32, the attention output of each part alone; not read where its logsumexp is -inf.
        lse_RCQ: float32, logsumexp of the scores of each part, to base 2.
        rows_R: int32, the row of `out` that each split row belongs to; None if row r is split row r.
        sinks_Q: attention sinks: scores that take part in the softmax without a value; None for no sinks.
        out_TQE: tensor to write to.
    """
    count, parts, heads, dim = partial_RCQE.shape
    split_combine_kernel[(count, heads)](
        partial_RCQE,
        lse_RCQ,
        rows_R,
        sinks_Q,
        out_TQE,
        out_TQE.stride(0),
        out_TQE.stride(1),
        HEADS=heads,
        PARTS=parts,
        VALUE_DIM=dim,
        BLOCK_E=triton.next_power_of_2(dim),
        num_warps=4,
    )


def parts_of(programs: int, longest: int, multiprocessors: int) -> int:
    """Number of parts to split positions into, a power of two: enough for two programs for each multiprocessor.

    Args:
        programs: number of programs without a split.
        longest: most positions of a sequence; a part has at least 256.
        multiprocessors: number of multiprocessors of the device.
    """
    wanted = min(2 * multiprocessors // max(programs, 1), longest // 256, 64)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1
