# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Matrix products of 16-bit inputs with quantized weights; `gemm_tiles` says why they are transposed.

If a tile has few tokens (AFTER), exact elements are multiplied and the sums of each group are scaled: that is less work
than scaling weights, and weights are not rounded. If it has many tokens, weights are scaled first.

Shape letters: T tokens, N outputs, K inputs, R inputs of a run, S parts of split sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from tessera_kernels import chips, tuning
from tessera_kernels.storage.quantized_weight import NIBBLES, QuantizedWeight
from tessera_kernels.triton_parts.gemm_tiles import (
    add_parts,
    gated,
    rows_of,
    splits_for,
    store_tile,
    tile_of,
    tokens_bucket,
    without,
)
from tessera_kernels.weight_only_linear.decode import decode_elements, scales_of
from tessera_kernels.weight_only_linear.gemv import gemv_kernel

NO_ZERO, ZERO_POINTS, OFFSETS = 0, 1, 2
"""Kinds of `zero_GN`: none, zero points (the elements that stand for zero), or offsets that are added."""
GEMV_TOKENS = 2
"""Largest number of tokens for which the heuristic chooses `gemv_kernel`, which uses no matrix units."""


@triton.jit
def add_run(
    b_acc_NT,
    b_bits_NR,
    b_x_RT,
    p_scale,
    p_zero,
    i_group,
    o_n,
    there_n,
    outputs,
    HALF: tl.constexpr,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    SCALED: tl.constexpr,
    AFTER: tl.constexpr,
    DOT: tl.constexpr,
):
    """Add the product of one run of inputs to the accumulator."""
    o_scale = tl.cast(i_group, tl.int64) * outputs + o_n
    b_zero = tl.full(o_n.shape, 8.0 if ZERO == 0 else 0.0, tl.float32)
    b_offset = b_zero
    if ZERO == 1:
        b_zero = tl.load(p_zero + o_scale, mask=there_n, other=0).to(tl.float32)
    if ZERO == 2:
        b_offset = tl.load(p_zero + o_scale, mask=there_n, other=0.0).to(tl.float32)
    b_w = decode_elements(b_bits_NR, b_zero, HALF, FORMAT, DOT)
    if SCALED:
        b_scale = scales_of(p_scale, o_scale, there_n, FORMAT)
        if AFTER:
            b_acc_NT += tl.dot(b_w, b_x_RT, input_precision="ieee") * b_scale[:, None]
            if ZERO == 2:
                b_acc_NT += b_offset[:, None] * tl.sum(b_x_RT.to(tl.float32), axis=0)[None, :]
        else:
            b_scaled = b_w.to(tl.float32) * b_scale[:, None]
            if ZERO == 2:
                b_scaled += b_offset[:, None]
            b_acc_NT = tl.dot(b_scaled.to(DOT), b_x_RT, b_acc_NT, input_precision="ieee")
    else:
        b_acc_NT = tl.dot(b_w, b_x_RT, b_acc_NT, input_precision="ieee")
    return b_acc_NT


# Specialized code would be compiled again for 1 token and for multiples of 16.
@triton.jit(do_not_specialize=["places", "tokens"])
def weight_only_kernel(
    p_x,
    p_elements,
    p_scale,
    p_zero,
    p_tensor_scale,
    p_bias,
    p_out,
    p_rows,
    p_experts,
    places,
    tokens,
    outputs,
    inputs,
    groups,
    steps,
    x_stride,
    out_stride,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    SCALED: tl.constexpr,
    TENSOR_SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN: tl.constexpr,
    GROUPED: tl.constexpr,
    DIVISOR: tl.constexpr,
    GATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SPLITS: tl.constexpr,
    AFTER: tl.constexpr,
    B_T: tl.constexpr,
    B_N: tl.constexpr,
):
    """Compute a tile [B_N, B_T] of the product, or of one part of it.

    `places` is the number of rows of all tiles. With GROUPED it exceeds `tokens`, because the rows of each expert
    are padded to whole tiles: `p_rows` holds the row in each place, and row r reads row r // DIVISOR of x. With GATED
    the weight has 2 · `outputs` rows, gates first. SCALED: scales are by group and applied inside the loop; otherwise
    the epilogue applies one for each output, if any.
    """
    DOT: tl.constexpr = tl.float32 if INTERPRETED else p_x.dtype.element_ty
    NIBBLE: tl.constexpr = FORMAT == "int4" or FORMAT == "mxfp4" or FORMAT == "nvfp4"  # noqa: PLR1714
    RUNS: tl.constexpr = 2 if NIBBLE else 1
    i_T, i_N = tile_of(tl.program_id(0), places, outputs, B_T, B_N)
    i_part = tl.program_id(1)
    height = outputs * 2 if GATED else outputs
    if GROUPED:
        i_expert = tl.load(p_experts + i_T).to(tl.int64)
        if i_expert < 0:
            return
        p_elements += i_expert * height * (steps * RUN if NIBBLE else inputs)
        p_scale += i_expert * groups * height
        p_zero += i_expert * groups * height
        p_bias += i_expert * height
        p_tensor_scale += i_expert
    i_rows, there = rows_of(p_rows, i_T, tokens, B_T, GROUPED)
    o_n = i_N.to(tl.int64) * B_N + tl.arange(0, B_N)
    there_n = o_n < outputs
    o_r = tl.arange(0, RUN)
    step_stride = tl.cast(height, tl.int64) * RUN if NIBBLE else RUN
    row_stride = RUN if NIBBLE else inputs
    p_tile = p_elements + o_n[:, None] * row_stride + o_r[None, :]
    p_x_row = p_x + (i_rows // DIVISOR)[:, None] * x_stride + o_r[None, :]
    b_acc = tl.zeros((B_N, B_T), dtype=tl.float32)
    b_up = tl.zeros((B_N, B_T), dtype=tl.float32) if GATED else b_acc
    each = tl.cdiv(steps, SPLITS)
    for i_step in range(i_part * each, tl.minimum(i_part * each + each, steps)):
        in_row = there_n[:, None]
        if not NIBBLE and not EVEN:
            in_row = in_row & (i_step * RUN + o_r < inputs)[None, :]
        p_step = p_tile + i_step * step_stride
        b_bits = tl.load(p_step, mask=in_row, other=0)
        b_bits_up = b_bits
        if GATED:
            b_bits_up = tl.load(p_step + tl.cast(outputs, tl.int64) * row_stride, mask=in_row, other=0)
        for HALF in tl.static_range(RUNS):
            o_k = (i_step * RUNS + HALF) * RUN
            here = there[:, None]
            if not EVEN:
                here = here & (o_k + o_r < inputs)[None, :]
            b_x = tl.trans(tl.load(p_x_row + o_k, mask=here, other=0.0).to(DOT))
            # Padding inputs of the last block have no group; they are zeros, so any scale will do.
            i_group = tl.minimum((i_step * RUNS + HALF) // (GROUP // RUN), groups - 1)
            b_acc = add_run(
                b_acc, b_bits, b_x, p_scale, p_zero, i_group, o_n, there_n, height,
                HALF, FORMAT, ZERO, SCALED, AFTER, DOT,
            )  # fmt: skip
            if GATED:
                b_up = add_run(
                    b_up, b_bits_up, b_x, p_scale + outputs, p_zero + outputs, i_group, o_n, there_n, height,
                    HALF, FORMAT, ZERO, SCALED, AFTER, DOT,
                )  # fmt: skip
    DONE: tl.constexpr = SCALED or FORMAT == "dense"
    b_acc = epilogue(b_acc, p_scale, p_tensor_scale, p_bias, o_n, there_n, DONE, TENSOR_SCALE, BIAS and SPLITS == 1)
    if GATED:
        b_up = epilogue(
            b_up, p_scale + outputs, p_tensor_scale, p_bias + outputs, o_n, there_n, DONE, TENSOR_SCALE, BIAS
        )
        b_acc = gated(b_acc, b_up, GATED)
    p_part = p_out + tl.cast(i_part, tl.int64) * tokens * outputs if SPLITS > 1 else p_out
    store_tile(p_part, b_acc, i_rows, there, o_n, outputs, out_stride)


@triton.jit
def epilogue(
    b_acc_NT,
    p_scale,
    p_tensor_scale,
    p_bias,
    o_n,
    there_n,
    DONE: tl.constexpr,
    TENSOR_SCALE: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Apply to sums what is constant for an output: its scale unless DONE, the scale of the tensor, and the bias."""
    if not DONE:
        b_acc_NT *= tl.load(p_scale + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
    if TENSOR_SCALE:
        b_acc_NT *= tl.load(p_tensor_scale)
    if BIAS:
        b_acc_NT += tl.load(p_bias + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
    return b_acc_NT


def arguments(weight: QuantizedWeight, bias_N: torch.Tensor | None, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of kernels for a weight: pointers, sizes and constants; unused pointers point to the elements."""
    elements, scale, zero, nibble = weight.elements, weight.scale_GN, weight.zero_GN, weight.format in NIBBLES
    run = weight.run if weight.format != "dense" else 64 if dtype.itemsize == 2 else 32
    block = run * (2 if nibble else 1)
    groups = 1 if scale is None else scale.shape[-2]
    return {
        "p_elements": elements.view(torch.uint8) if weight.format == "fp8" else elements,
        "p_scale": elements if scale is None else scale.view(torch.uint8) if weight.format == "nvfp4" else scale,
        "p_zero": elements if zero is None else zero,
        "p_tensor_scale": elements if weight.tensor_scale is None else weight.tensor_scale,
        "p_bias": elements if bias_N is None else bias_N,
        "inputs": weight.inputs,
        "groups": groups,
        "steps": triton.cdiv(weight.inputs, block),
        "FORMAT": weight.format,
        "ZERO": NO_ZERO if zero is None else OFFSETS if zero.dtype.is_floating_point else ZERO_POINTS,
        "SCALED": nibble or groups > 1,
        "TENSOR_SCALE": weight.tensor_scale is not None,
        "BIAS": bias_N is not None,
        "RUN": run,
        "GROUP": weight.group if weight.format != "dense" else run,
        "EVEN": weight.inputs % block == 0,
    }


def bucket(tokens: int, outputs: int, inputs: int, *, invariant: bool) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    rows = "invariant" if invariant else tokens_bucket(tokens)
    return f"{rows} N{triton.next_power_of_2(outputs)} K{triton.next_power_of_2(inputs)}"


def config(
    tokens: int, weight: QuantizedWeight, dtype: torch.dtype, device: torch.device, *, invariant: bool
) -> Mapping[str, int]:
    """The launch configuration: tiles, parts, warps and stages; with `invariant` the same for any number of tokens."""
    kind = f"{weight.format} {str(dtype).removeprefix('torch.')}"
    name = bucket(tokens, weight.outputs, weight.inputs, invariant=invariant)
    tuned = tuning.lookup("weight_only_linear", tuning.device_here(), kind, name)
    shape = tokens, weight.outputs, weight.inputs
    return tuned or heuristic(
        *shape, weight.run, chips.chip_of(device), chips.multiprocessors_of(device), invariant=invariant
    )


def heuristic(
    tokens: int, outputs: int, inputs: int, run: int, chip: chips.Chip, multiprocessors: int, *, invariant: bool
) -> dict[str, int]:
    """Configuration without a tuned entry.

    Few tokens: narrow tiles and split sums, until every multiprocessor reads. Many tokens: the tiles with the highest
    FLOP/s.
    """
    steps = triton.cdiv(inputs, run)
    if tokens <= GEMV_TOKENS and not invariant:
        splits = splits_for(triton.cdiv(outputs, 16), steps, multiprocessors, waves=8)
        return {"GEMV": 1, "B_N": 16, "SPLITS": splits, "num_warps": 4, "num_stages": 3}
    if tokens > 64 and not invariant:
        wide = tokens > 128
        shape = {"B_T": 128 if wide else 64, "B_N": 128, "SPLITS": 1, "AFTER": 0}
        stages = 3 if chip.shared > 2**16 else 2
        return {"GEMV": 0, **shape, "num_warps": 8, "num_stages": stages} | _registers(chip, 216 if wide else 0)
    tile = 32 if invariant else max(16, triton.next_power_of_2(tokens))
    splits = splits_for(triton.cdiv(outputs, 64), steps, multiprocessors)
    shape = {"B_T": tile, "B_N": 64, "SPLITS": splits, "AFTER": 1}
    return {"GEMV": 0, **shape, "num_warps": 4, "num_stages": 4} | _registers(chip, 168 if tile == 64 else 0)


def _registers(chip: chips.Chip, most: int) -> dict[str, int]:
    """A bound on the registers of a thread, for chips where ptxas would otherwise spill to keep a higher occupancy."""
    return {"maxnreg": most} if most and chip.capability in (80, 89) else {}


def weight_only_linear(
    x_TK: torch.Tensor,
    weight: QuantizedWeight,
    bias_N: torch.Tensor | None,
    *,
    invariant: bool = False,
    out: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.weight_only_linear.weight_only_linear`; inputs of a row and `out` are contiguous."""
    tokens, outputs = x_TK.shape[0], weight.outputs
    out = x_TK.new_empty(tokens, outputs) if out is None else out
    if not out.numel():
        return out
    how = dict(configuration or config(tokens, weight, x_TK.dtype, x_TK.device, invariant=invariant))
    of_weight = arguments(weight, bias_N, x_TK.dtype)
    splits = how["SPLITS"]
    filled = out if splits == 1 else x_TK.new_empty(splits, tokens, outputs, dtype=torch.float32)
    if how["GEMV"]:
        tokens_held = triton.next_power_of_2(tokens)
        gemv_kernel[(triton.cdiv(outputs, how["B_N"]), splits)](
            x_TK, p_out=filled, tokens=tokens, outputs=outputs, x_stride=x_TK.stride(0), STAGES=how["num_stages"],
            T=tokens_held, **of_weight, **without(how, "GEMV"),
        )  # fmt: skip
    else:
        tiles = triton.cdiv(tokens, how["B_T"]) * triton.cdiv(outputs, how["B_N"])
        weight_only_kernel[(tiles, splits)](
            x_TK, p_out=filled, p_rows=x_TK, p_experts=x_TK, places=tokens, tokens=tokens, outputs=outputs,
            x_stride=x_TK.stride(0), out_stride=outputs, GROUPED=False, DIVISOR=1, GATED=False,
            INTERPRETED=triton.knobs.runtime.interpret, **of_weight, **without(how, "GEMV"),
        )  # fmt: skip
    if splits > 1:
        add_parts(filled, bias_N, out)
    return out
