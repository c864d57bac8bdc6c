# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Products of 16-bit inputs with weights in few bits, on matrix units. See `gemm_tiles` for why they are transposed.

Where a tile has few tokens (AFTER), numbers are multiplied as they are, exactly, and each group's sums are scaled: that
is less work than scaling weights, and weights are rounded nowhere. Where it has many, weights are scaled first.

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
from tessera_kernels.weight_only_linear.decode import numbers_of, scales_of
from tessera_kernels.weight_only_linear.gemv import gemv_kernel

NO_ZERO, ZERO_POINTS, OFFSETS = 0, 1, 2
"""What `zero_GN` is: not there, numbers that stand for zero, or what is added."""
GEMV_TOKENS = 2
"""Up to how many tokens the heuristic leaves matrix units idle."""


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
    """Add the product of one run of inputs."""
    o_scale = tl.cast(i_group, tl.int64) * outputs + o_n
    b_zero = tl.full(o_n.shape, 8.0 if ZERO == 0 else 0.0, tl.float32)
    b_offset = b_zero
    if ZERO == 1:
        b_zero = tl.load(p_zero + o_scale, mask=there_n, other=0).to(tl.float32)
    if ZERO == 2:
        b_offset = tl.load(p_zero + o_scale, mask=there_n, other=0.0).to(tl.float32)
    b_w = numbers_of(b_bits_NR, b_zero, HALF, FORMAT, DOT)
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


# Code that knew the number of tokens would be compiled again for 1 and for multiples of 16.
@triton.jit(do_not_specialize=["places", "tokens"])
def weight_only_kernel(
    p_x,
    p_numbers,
    p_scale,
    p_zero,
    p_whole,
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
    WHOLE: tl.constexpr,
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
    """A tile [B_N, B_T] of the product, or of one part of it.

    `places` are rows of tiles, which with GROUPED are more than `tokens`: every expert's are filled up to whole tiles,
    `p_rows` has what stands where, and row r reads x's row r // DIVISOR. With GATED the weight has 2 · `outputs` rows,
    gates first. SCALED: scales by group inside the loop; else one for each output at the end, if any.
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
        p_numbers += i_expert * height * (steps * RUN if NIBBLE else inputs)
        p_scale += i_expert * groups * height
        p_zero += i_expert * groups * height
        p_bias += i_expert * height
        p_whole += i_expert
    i_rows, there = rows_of(p_rows, i_T, tokens, B_T, GROUPED)
    o_n = i_N.to(tl.int64) * B_N + tl.arange(0, B_N)
    there_n = o_n < outputs
    o_r = tl.arange(0, RUN)
    step_stride = tl.cast(height, tl.int64) * RUN if NIBBLE else RUN
    row_stride = RUN if NIBBLE else inputs
    p_tile = p_numbers + o_n[:, None] * row_stride + o_r[None, :]
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
            # Inputs that the last block has too many have no group; they are zeros, whatever scales them.
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
    b_acc = finished(b_acc, p_scale, p_whole, p_bias, o_n, there_n, DONE, WHOLE, BIAS and SPLITS == 1)
    if GATED:
        b_up = finished(b_up, p_scale + outputs, p_whole, p_bias + outputs, o_n, there_n, DONE, WHOLE, BIAS)
        b_acc = gated(b_acc, b_up, GATED)
    p_part = p_out + tl.cast(i_part, tl.int64) * tokens * outputs if SPLITS > 1 else p_out
    store_tile(p_part, b_acc, i_rows, there, o_n, outputs, out_stride)


@triton.jit
def finished(
    b_acc_NT, p_scale, p_whole, p_bias, o_n, there_n, DONE: tl.constexpr, WHOLE: tl.constexpr, BIAS: tl.constexpr
):
    """Sums with what is the same for a whole output: its scale unless DONE, the tensor's, the bias."""
    if not DONE:
        b_acc_NT *= tl.load(p_scale + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
    if WHOLE:
        b_acc_NT *= tl.load(p_whole)
    if BIAS:
        b_acc_NT += tl.load(p_bias + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
    return b_acc_NT


def arguments(weight: QuantizedWeight, bias_N: torch.Tensor | None, dtype: torch.dtype) -> dict[str, Any]:
    """What kernels are told of a weight: pointers, sizes, constants. What it must not follow points to the numbers."""
    numbers, scale, zero, nibble = weight.elements, weight.scale_GN, weight.zero_GN, weight.format in NIBBLES
    run = weight.run if weight.format != "dense" else 64 if dtype.itemsize == 2 else 32
    block = run * (2 if nibble else 1)
    groups = 1 if scale is None else scale.shape[-2]
    return {
        "p_numbers": numbers.view(torch.uint8) if weight.format == "fp8" else numbers,
        "p_scale": numbers if scale is None else scale.view(torch.uint8) if weight.format == "nvfp4" else scale,
        "p_zero": numbers if zero is None else zero,
        "p_whole": numbers if weight.tensor_scale is None else weight.tensor_scale,
        "p_bias": numbers if bias_N is None else bias_N,
        "inputs": weight.inputs,
        "groups": groups,
        "steps": triton.cdiv(weight.inputs, block),
        "FORMAT": weight.format,
        "ZERO": NO_ZERO if zero is None else OFFSETS if zero.dtype.is_floating_point else ZERO_POINTS,
        "SCALED": nibble or groups > 1,
        "WHOLE": weight.tensor_scale is not None,
        "BIAS": bias_N is not None,
        "RUN": run,
        "GROUP": weight.group if weight.format != "dense" else run,
        "EVEN": weight.inputs % block == 0,
    }


def bucket(tokens: int, outputs: int, inputs: int, *, invariant: bool) -> str:
    """The name of a class of shapes, as tuned tables have it."""
    rows = "invariant" if invariant else tokens_bucket(tokens)
    return f"{rows} N{triton.next_power_of_2(outputs)} K{triton.next_power_of_2(inputs)}"


def config(
    tokens: int, weight: QuantizedWeight, dtype: torch.dtype, device: torch.device, *, invariant: bool
) -> Mapping[str, int]:
    """Tiles, parts and warps; with `invariant` the same for any number of tokens."""
    kind = f"{weight.format} {str(dtype).removeprefix('torch.')}"
    name = bucket(tokens, weight.outputs, weight.inputs, invariant=invariant)
    tuned = tuning.lookup("weight_only_linear", tuning.device_here(), kind, name)
    shape = tokens, weight.outputs, weight.inputs
    return tuned or heuristic(
        *shape, weight.run, chips.chip_of(device), chips.multiprocessors_of(device), invariant=invariant
    )


def heuristic(
    tokens: int, outputs: int, inputs: int, run: int, chip: chips.Chip, units: int, *, invariant: bool
) -> dict[str, int]:
    """Few tokens: narrow tiles and split sums, until every multiprocessor reads; many: tiles that compute most."""
    steps = triton.cdiv(inputs, run)
    if tokens <= GEMV_TOKENS and not invariant:
        splits = splits_for(triton.cdiv(outputs, 16), steps, units, waves=8)
        return {"GEMV": 1, "B_N": 16, "SPLITS": splits, "num_warps": 4, "num_stages": 3}
    if tokens > 64 and not invariant:
        wide = tokens > 128
        shape = {"B_T": 128 if wide else 64, "B_N": 128, "SPLITS": 1, "AFTER": 0}
        stages = 3 if chip.shared > 2**16 else 2
        return {"GEMV": 0, **shape, "num_warps": 8, "num_stages": stages} | _registers(chip, 216 if wide else 0)
    tile = 32 if invariant else max(16, triton.next_power_of_2(tokens))
    splits = splits_for(triton.cdiv(outputs, 64), steps, units)
    shape = {"B_T": tile, "B_N": 64, "SPLITS": splits, "AFTER": 1}
    return {"GEMV": 0, **shape, "num_warps": 4, "num_stages": 4} | _registers(chip, 168 if tile == 64 else 0)


def _registers(chip: chips.Chip, most: int) -> dict[str, int]:
    """A bound on a thread's registers, where ptxas would rather spill than use more than some occupancy leaves it."""
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
    """See `tessera_kernels.weight_only_linear.weight_only_linear`; inputs of a row are contiguous, so is `out`."""
    tokens, outputs = x_TK.shape[0], weight.outputs
    out = x_TK.new_empty(tokens, outputs) if out is None else out
    if not out.numel():
        return out
    how = dict(configuration or config(tokens, weight, x_TK.dtype, x_TK.device, invariant=invariant))
    told = arguments(weight, bias_N, x_TK.dtype)
    splits = how["SPLITS"]
    filled = out if splits == 1 else x_TK.new_empty(splits, tokens, outputs, dtype=torch.float32)
    if how["GEMV"]:
        tokens_held = triton.next_power_of_2(tokens)
        gemv_kernel[(triton.cdiv(outputs, how["B_N"]), splits)](
            x_TK, p_out=filled, tokens=tokens, outputs=outputs, x_stride=x_TK.stride(0), STAGES=how["num_stages"],
            T=tokens_held, **told, **without(how, "GEMV"),
        )  # fmt: skip
    else:
        tiles = triton.cdiv(tokens, how["B_T"]) * triton.cdiv(outputs, how["B_N"])
        weight_only_kernel[(tiles, splits)](
            x_TK, p_out=filled, p_rows=x_TK, p_experts=x_TK, places=tokens, tokens=tokens, outputs=outputs,
            x_stride=x_TK.stride(0), out_stride=outputs, GROUPED=False, DIVISOR=1, GATED=False,
            INTERPRETED=triton.knobs.runtime.interpret, **told, **without(how, "GEMV"),
        )  # fmt: skip
    if splits > 1:
        add_parts(filled, bias_N, out)
    return out
