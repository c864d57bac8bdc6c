# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Products of one to eight tokens with quantized weights, without matrix units. Imports Triton.

Every element of the weight is read once and needs no layout of a matrix unit; sums over threads are taken once, at the
end.

Shape letters: T tokens, N outputs, R inputs of a run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_kernels.weight_only_linear.decode import decode_elements, scales_of


@triton.jit(do_not_specialize=["tokens"])
def gemv_kernel(
    p_x,
    p_elements,
    p_scale,
    p_zero,
    p_tensor_scale,
    p_bias,
    p_out,
    tokens,
    outputs,
    inputs,
    groups,
    steps,
    x_stride,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    SCALED: tl.constexpr,
    TENSOR_SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    T: tl.constexpr,
    B_N: tl.constexpr,
):
    """Compute B_N outputs of all T tokens, or one part of their sums; constants are those of `weight_only_kernel`."""
    NIBBLE: tl.constexpr = FORMAT == "int4" or FORMAT == "mxfp4" or FORMAT == "nvfp4"  # noqa: PLR1714
    RUNS: tl.constexpr = 2 if NIBBLE else 1
    i_part = tl.program_id(1)
    o_n = tl.program_id(0).to(tl.int64) * B_N + tl.arange(0, B_N)
    there_n = o_n < outputs
    i_rows = tl.arange(0, T)
    there = i_rows < tokens
    o_r = tl.arange(0, RUN)
    step_stride = tl.cast(outputs, tl.int64) * RUN if NIBBLE else RUN
    p_tile = p_elements + o_n[:, None] * (RUN if NIBBLE else inputs) + o_r[None, :]
    p_x_row = p_x + i_rows.to(tl.int64)[:, None] * x_stride + o_r[None, :]
    b_acc = tl.zeros((T, B_N, RUN), dtype=tl.float32)
    each = tl.cdiv(steps, SPLITS)
    for i_step in tl.range(i_part * each, tl.minimum(i_part * each + each, steps), num_stages=STAGES):
        in_row = there_n[:, None]
        if not NIBBLE and not EVEN:
            in_row = in_row & (i_step * RUN + o_r < inputs)[None, :]
        b_bits = tl.load(p_tile + i_step * step_stride, mask=in_row, other=0)
        for HALF in tl.static_range(RUNS):
            o_k = (i_step * RUNS + HALF) * RUN
            here = there[:, None]
            if not EVEN:
                here = here & (o_k + o_r < inputs)[None, :]
            b_x = tl.load(p_x_row + o_k, mask=here, other=0.0).to(tl.float32)
            i_group = tl.minimum((i_step * RUNS + HALF) // (GROUP // RUN), groups - 1)
            o_scale = tl.cast(i_group, tl.int64) * outputs + o_n
            b_zero = tl.full((B_N,), 8.0 if ZERO == 0 else 0.0, tl.float32)
            if ZERO == 1:
                b_zero = tl.load(p_zero + o_scale, mask=there_n, other=0).to(tl.float32)
            b_w = decode_elements(b_bits, b_zero, HALF, FORMAT, tl.float32)
            if SCALED:
                b_w *= scales_of(p_scale, o_scale, there_n, FORMAT)[:, None]
            if ZERO == 2:
                b_w += tl.load(p_zero + o_scale, mask=there_n, other=0.0).to(tl.float32)[:, None]
            b_acc += b_w[None, :, :] * b_x[:, None, :]
    b_sum = tl.sum(b_acc, axis=2)
    if not SCALED and FORMAT != "dense":
        b_sum *= tl.load(p_scale + o_n, mask=there_n, other=0.0).to(tl.float32)[None, :]
    if TENSOR_SCALE:
        b_sum *= tl.load(p_tensor_scale)
    if BIAS and SPLITS == 1:
        b_sum += tl.load(p_bias + o_n, mask=there_n, other=0.0).to(tl.float32)[None, :]
    o_out = (i_part.to(tl.int64) * tokens + i_rows)[:, None] * outputs + o_n[None, :]
    tl.store(p_out + o_out, b_sum.to(p_out.dtype.element_ty), mask=there[:, None] & there_n[None, :])
