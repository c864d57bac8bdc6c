# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Matrix products of eight bits with eight bits; `gemm_tiles` says why they are transposed.

Sums of int8 are exact integers. Sums of float8 with scales by block are added in float32 every 128 inputs, also because
Hopper accumulates float8 with fewer bits than float32 has.

Shape letters: T tokens, N outputs, K inputs, S parts of split sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import chips, tuning
from tessera_kernels.scaled_linear.quantize import quantize_tokens
from tessera_kernels.storage.scaled_weight import BLOCK, ScaledWeight
from tessera_kernels.triton_parts.gemm_tiles import (
    add_parts,
    gated,
    rows_of,
    splits_for,
    store_tile,
    tile_of,
    tokens_bucket,
)


@triton.jit
def add_step(b_acc_NT, b_w_NK, b_x_KT, b_w_scale, b_x_scale, BLOCKED: tl.constexpr, INTERPRETED: tl.constexpr):
    """Add the product of some inputs to the accumulator; with BLOCKED, of at most 128 inputs, scaled."""
    if INTERPRETED:
        b_product = tl.dot(b_w_NK.to(tl.float32), b_x_KT.to(tl.float32), input_precision="ieee").to(b_acc_NT.dtype)
        b_acc_NT += scaled(b_product, b_w_scale, b_x_scale) if BLOCKED else b_product
    elif BLOCKED:
        b_acc_NT += scaled(tl.dot(b_w_NK, b_x_KT), b_w_scale, b_x_scale)
    else:
        b_acc_NT = tl.dot(b_w_NK, b_x_KT, b_acc_NT, out_dtype=b_acc_NT.dtype)
    return b_acc_NT


@triton.jit
def scaled(b_NT, b_w_scale, b_x_scale):
    """Multiply a tile by the scales of its outputs and of its tokens."""
    return b_NT * (b_w_scale[:, None] * b_x_scale[None, :])


@triton.jit
def block_scales(p_w_scale, i_first, o_n, there_n, blocks, i_block, UNIFORM: tl.constexpr):
    """Scales of the outputs of a tile that begins at `i_first`; with UNIFORM the tile lies in one block."""
    if UNIFORM:
        b_scale = tl.zeros(o_n.shape, tl.float32) + tl.load(p_w_scale + i_first // 128 * blocks + i_block)
    else:
        b_scale = tl.load(p_w_scale + (i_first + o_n) // 128 * blocks + i_block, mask=there_n, other=0.0)
    return b_scale


@triton.jit(do_not_specialize=["places", "tokens"])
def scaled_kernel(
    p_x,
    p_w,
    p_x_scale,
    p_w_scale,
    p_bias,
    p_exact,
    p_columns,
    p_column_weights,
    p_out,
    p_rows,
    p_experts,
    places,
    tokens,
    outputs,
    inputs,
    columns,
    exact_stride,
    out_stride,
    BLOCKED: tl.constexpr,
    BIAS: tl.constexpr,
    ALIGNED: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    GROUPED: tl.constexpr,
    DIVISOR: tl.constexpr,
    GATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SPLITS: tl.constexpr,
    B_T: tl.constexpr,
    B_N: tl.constexpr,
    B_K: tl.constexpr,
):
    """Compute a tile [B_N, B_T] of the product, or of one part of it; GROUPED and GATED are as in `weight_only_kernel`.

    ALIGNED: with GATED, `outputs` is a multiple of B_N.
    COLUMNS: `columns` inputs are multiplied without quantization; `p_columns` holds their indices and
    `p_column_weights` [M, N] their weights.
    """
    i_T, i_N = tile_of(tl.program_id(0), places, outputs, B_T, B_N)
    i_part = tl.program_id(1)
    height = outputs * 2 if GATED else outputs
    blocks = tl.cdiv(inputs, 128)
    if GROUPED:
        i_expert = tl.load(p_experts + i_T).to(tl.int64)
        if i_expert < 0:
            return
        p_w += i_expert * height * inputs
        p_w_scale += i_expert * (tl.cdiv(height, 128) * blocks if BLOCKED else height)
        p_bias += i_expert * height
    i_rows, there = rows_of(p_rows, i_T, tokens, B_T, GROUPED)
    i_x_rows = i_rows // DIVISOR
    i_first = i_N.to(tl.int64) * B_N
    o_tile = tl.arange(0, B_N)
    o_n = i_first + o_tile
    there_n = o_n < outputs
    o_k = tl.arange(0, B_K)
    p_w_tile = p_w + o_n[:, None] * inputs + o_k[None, :]
    p_x_tile = p_x + i_x_rows[:, None] * inputs + o_k[None, :]
    up = tl.cast(outputs, tl.int64) * inputs
    ACC: tl.constexpr = tl.int32 if p_x.dtype.element_ty == tl.int8 and not BLOCKED else tl.float32
    b_acc = tl.zeros((B_N, B_T), dtype=ACC)
    b_up = tl.zeros((B_N, B_T), dtype=ACC) if GATED else b_acc
    b_x_scale = tl.zeros((B_T,), dtype=tl.float32)
    b_w_scale = tl.zeros((B_N,), dtype=tl.float32)
    UNIFORM: tl.constexpr = ALIGNED and 128 % B_N == 0
    steps = tl.cdiv(inputs, B_K)
    each = tl.cdiv(steps, SPLITS)
    for i_step in range(i_part * each, tl.minimum(i_part * each + each, steps)):
        here_w, here_x = there_n[:, None], there[:, None]
        if not EVEN:
            in_row = (i_step * B_K + o_k < inputs)[None, :]
            here_w, here_x = here_w & in_row, here_x & in_row
        b_x = tl.trans(tl.load(p_x_tile + i_step * B_K, mask=here_x, other=0.0))
        b_w = tl.load(p_w_tile + i_step * B_K, mask=here_w, other=0.0)
        i_block = i_step * B_K // 128
        if BLOCKED:
            b_x_scale = tl.load(p_x_scale + i_x_rows * blocks + i_block, mask=there, other=0.0)
            b_w_scale = block_scales(p_w_scale, i_first, o_tile, there_n, blocks, i_block, UNIFORM)
        b_acc = add_step(b_acc, b_w, b_x, b_w_scale, b_x_scale, BLOCKED, INTERPRETED)
        if GATED:
            b_w = tl.load(p_w_tile + up + i_step * B_K, mask=here_w, other=0.0)
            if BLOCKED:
                b_w_scale = block_scales(p_w_scale, outputs + i_first, o_tile, there_n, blocks, i_block, UNIFORM)
            b_up = add_step(b_up, b_w, b_x, b_w_scale, b_x_scale, BLOCKED, INTERPRETED)
    if not BLOCKED:
        b_x_scale = tl.load(p_x_scale + i_x_rows, mask=there, other=0.0)
        b_acc = scaled(b_acc.to(tl.float32), tl.load(p_w_scale + o_n, mask=there_n, other=0.0), b_x_scale)
        if GATED:
            b_w_scale = tl.load(p_w_scale + outputs + o_n, mask=there_n, other=0.0)
            b_up = scaled(b_up.to(tl.float32), b_w_scale, b_x_scale)
    if COLUMNS:
        for i_column in range(columns):
            i_input = tl.load(p_columns + i_column)
            b_exact = tl.load(p_exact + i_rows * exact_stride + i_input, mask=there, other=0.0).to(tl.float32)
            b_weight = tl.load(p_column_weights + tl.cast(i_column, tl.int64) * outputs + o_n, mask=there_n, other=0.0)
            b_acc += b_weight[:, None] * b_exact[None, :]
    if BIAS and SPLITS == 1:
        b_acc += tl.load(p_bias + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
        if GATED:
            b_up += tl.load(p_bias + outputs + o_n, mask=there_n, other=0.0).to(tl.float32)[:, None]
    if GATED:
        b_acc = gated(b_acc, b_up, GATED)
    p_part = p_out + tl.cast(i_part, tl.int64) * tokens * outputs if SPLITS > 1 else p_out
    store_tile(p_part, b_acc, i_rows, there, o_n, outputs, out_stride)


def bucket(tokens: int, outputs: int, inputs: int, *, invariant: bool) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    rows = "invariant" if invariant else tokens_bucket(tokens)
    return f"{rows} N{triton.next_power_of_2(outputs)} K{triton.next_power_of_2(inputs)}"


def config(tokens: int, weight: ScaledWeight, device: torch.device, *, invariant: bool) -> Mapping[str, int]:
    """The launch configuration: tiles, parts, warps and stages; with `invariant` the same for any number of tokens."""
    outputs, inputs = weight.elements_NK.shape[-2:]
    kind = str(weight.elements_NK.dtype).removeprefix("torch.") + (" blocks" if weight.blocked else "")
    tuned = tuning.lookup(
        "scaled_linear", tuning.device_here(), kind, bucket(tokens, outputs, inputs, invariant=invariant)
    )
    if tuned is not None:
        return tuned
    shape, chip, multiprocessors = (tokens, outputs, inputs), chips.chip_of(device), chips.multiprocessors_of(device)
    integer = weight.elements_NK.dtype == torch.int8
    return heuristic(*shape, chip, multiprocessors, invariant=invariant, integer=integer, blocked=weight.blocked)


def heuristic(
    tokens: int,
    outputs: int,
    inputs: int,
    chip: chips.Chip,
    multiprocessors: int,
    *,
    invariant: bool,
    integer: bool,
    blocked: bool,
) -> dict[str, int]:
    """Configuration without a tuned entry.

    Few tokens: narrow tiles, and split sums unless they are `integer`. Many tokens: the tiles with the highest FLOP/s.
    """
    if tokens > 64 and not invariant:
        stages = 4 if chip.shared > 200 * 1024 else 3 if chip.shared > 2**16 else 2
        # Blocks need a second accumulator. On Blackwell, Triton multiplies int8 with the older instructions.
        wide = tokens > 128 and not blocked and not (integer and chip.capability >= 100)
        tile = {"B_T": 128 if wide else 64, "B_N": 128, "B_K": BLOCK, "SPLITS": 1}
        return {**tile, "num_warps": 8, "num_stages": stages if tile["B_T"] == 128 else min(stages, 3)}
    # Parts of int8 sums would be rounded before they are added, and int8 promises the same bits in any batch.
    splits = 1 if integer else splits_for(triton.cdiv(outputs, 64), triton.cdiv(inputs, BLOCK), multiprocessors)
    tile = {"B_T": 32 if invariant else max(16, triton.next_power_of_2(tokens)), "B_N": 64, "B_K": BLOCK}
    return {**tile, "SPLITS": splits, "num_warps": 4, "num_stages": 4 if chip.shared > 2**16 else 3}


def scaled_linear(
    x_TK: torch.Tensor,
    weight: ScaledWeight,
    bias_N: torch.Tensor | None,
    *,
    invariant: bool = False,
    out: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.scaled_linear.scaled_linear`; inputs of a row and `out` are contiguous."""
    elements, scales = quantize_tokens(x_TK, weight.elements_NK.dtype, blocks=weight.blocked, given=weight.input_scale)
    out = x_TK.new_empty(len(x_TK), weight.elements_NK.shape[0]) if out is None else out
    multiply(elements, scales, weight, bias_N, out, invariant=invariant, configuration=configuration)
    return out


def multiply(
    elements_TK: torch.Tensor,
    x_scale: torch.Tensor,
    weight: ScaledWeight,
    bias_N: torch.Tensor | None,
    out_TN: torch.Tensor,
    *,
    invariant: bool = False,
    exact: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    configuration: Mapping[str, int] | None = None,
) -> None:
    """Write the product of quantized inputs to a contiguous `out`.

    Args:
        elements_TK: contiguous quantized inputs, from `quantize_tokens`.
        x_scale: scales of the inputs, from `quantize_tokens`.
        weight: the weight of one layer.
        bias_N: contiguous, or None.
        out_TN: any float dtype.
        invariant: whether the configuration is the same for any number of tokens.
        exact: inputs [T, K], the int64 columns [M] of them that are multiplied without quantization, and the weights of
            these columns, float32 [M, N]; None if there are none.
        configuration: launch configuration; the result of `config` if not given.
    """
    (tokens, outputs), inputs = out_TN.shape, elements_TK.shape[1]
    if not out_TN.numel():
        return
    how = dict(configuration or config(tokens, weight, out_TN.device, invariant=invariant))
    splits = how["SPLITS"]
    filled = out_TN if splits == 1 else out_TN.new_empty(splits, tokens, outputs, dtype=torch.float32)
    x_TK, columns_M, weights_MN = exact or (out_TN, out_TN, out_TN)
    tiles = triton.cdiv(tokens, how["B_T"]) * triton.cdiv(outputs, how["B_N"])
    scaled_kernel[(tiles, splits)](
        elements_TK, weight.elements_NK, x_scale, weight.scale, out_TN if bias_N is None else bias_N,
        x_TK, columns_M, weights_MN, filled, out_TN, out_TN,
        tokens, tokens, outputs, inputs, 0 if exact is None else len(columns_M), x_TK.stride(0), outputs,
        BLOCKED=weight.blocked, BIAS=bias_N is not None, ALIGNED=True, COLUMNS=exact is not None and len(columns_M) > 0,
        EVEN=inputs % how["B_K"] == 0, GROUPED=False, DIVISOR=1, GATED=False,
        INTERPRETED=triton.knobs.runtime.interpret, **how,
    )  # fmt: skip
    if splits > 1:
        add_parts(filled, bias_N, out_TN)
