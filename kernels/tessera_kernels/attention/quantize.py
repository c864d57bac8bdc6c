# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Quantizes queries, keys and values of `attention` to int8 and float8, with their scales. Imports Triton.

Shape letters: B batch, T tokens, H heads, D head dim, N blocks of R tokens. Knows nothing of attention itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.triton_parts.float8 import to_float8


@triton.jit
def quantize_kernel(
    p_x,
    p_center,
    p_channel_scale,
    p_out,
    p_scale,
    p_lengths,
    tokens,
    padded,
    stride_b,
    stride_t,
    stride_h,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FLOAT8: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Quantize a block of tokens of one head: to int8 [B, H, T, D] with one scale, or, with FLOAT8, to float8
    [B, H, D, T] by the scales of the channels.
    """
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    i_b = head // HEADS
    i_t = block * ROWS + tl.arange(0, ROWS)
    o_d = tl.arange(0, BLOCK_D)
    count = tokens
    if p_lengths is not None:
        count = tl.minimum(tl.load(p_lengths + i_b).to(tl.int32), tokens)
    inside = (i_t < count)[:, None] & (o_d < DIM)[None, :]
    i_row = i_t.to(tl.int64)[:, None]
    at = p_x + i_b * stride_b + head % HEADS * stride_h + i_row * stride_t + o_d[None, :]
    b_x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if FLOAT8:
        b_scale = tl.load(p_channel_scale + head * DIM + o_d, mask=o_d < DIM, other=1.0)
        b_x = tl.minimum(tl.maximum(b_x / tl.maximum(b_scale, 1e-30)[None, :], -448.0), 448.0)
        out_at = p_out + (head * DIM + o_d)[None, :] * padded + i_row
        tl.store(out_at, to_float8(b_x, INTERPRETED), mask=(i_t < padded)[:, None] & (o_d < DIM)[None, :])
    else:
        if p_center is not None:
            b_center = tl.load(p_center + head * DIM + o_d, mask=o_d < DIM, other=0.0)
            b_x = tl.where(inside, b_x - b_center[None, :], 0.0)
        bad = tl.max(tl.max((b_x != b_x).to(tl.int32), axis=1), axis=0)  # noqa: PLR0124 - only NaN differs from itself
        scale = tl.where(bad > 0, float("nan"), tl.max(tl.max(tl.abs(b_x), axis=1), axis=0) / 127.0)
        b_x = b_x / tl.maximum(scale, 1e-30)
        # Round to nearest, ties to even: adding 1.5 · 2^23 leaves no fraction bits.
        b_x = (b_x + 12582912.0) - 12582912.0
        b_x = tl.where(b_x == b_x, b_x, 0.0)  # noqa: PLR0124
        out_at = p_out + (head * tokens + i_row) * DIM + o_d[None, :]
        tl.store(out_at, b_x.to(tl.int8), mask=(i_t < tokens)[:, None] & (o_d < DIM)[None, :])
        tl.store(p_scale + head * tl.cdiv(tokens, ROWS) + block, scale)


def center_of(key_BTHD: torch.Tensor, lengths_B: torch.Tensor | None) -> torch.Tensor:
    """The mean key [B, H, D], float32, over the first `lengths_B` tokens of each sequence."""
    if lengths_B is None:
        return key_BTHD.mean(1, dtype=torch.float32)
    there = torch.arange(key_BTHD.shape[1], device=key_BTHD.device) < lengths_B[:, None]
    total = key_BTHD.masked_fill(~there[..., None, None], 0).sum(1, dtype=torch.float32)
    return total / lengths_B.view(-1, 1, 1)


def int8_blocks(
    x_BTHD: torch.Tensor, rows: int, *, center_BHD: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x - `center` to int8 [B, H, T, D], with a float32 scale [B, H, N] for each `rows` tokens."""
    batch, tokens, heads, dim = x_BTHD.shape
    out = torch.empty(batch, heads, tokens, dim, dtype=torch.int8, device=x_BTHD.device)
    scale = torch.empty(batch, heads, triton.cdiv(tokens, rows), dtype=torch.float32, device=x_BTHD.device)
    _launch(x_BTHD, rows, center_BHD, None, out, scale, lengths_B, tokens)
    return out, scale


def float8_channels(
    x_BTHD: torch.Tensor, *, lengths_B: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x to float8 [B, H, D, T], with T padded with zeros to a multiple of 16, and float32 scales [B, H, D].

    The result is transposed because float8 units of Hopper read both factors along the dim that is summed over.
    """
    batch, tokens, heads, dim = x_BTHD.shape
    padded = triton.cdiv(tokens, 16) * 16
    there = x_BTHD
    if lengths_B is not None:
        inside = torch.arange(tokens, device=x_BTHD.device) < lengths_B[:, None]
        there = x_BTHD.masked_fill(~inside[..., None, None], 0)
    scale = (there.abs().amax(1).float() / 448.0).contiguous()
    out = torch.empty(batch, heads, dim, padded, dtype=torch.float8_e4m3fn, device=x_BTHD.device)
    _launch(x_BTHD, 64, None, scale, out, None, lengths_B, padded)
    return out, scale


def _launch(
    x_BTHD: torch.Tensor,
    rows: int,
    center: torch.Tensor | None,
    channel_scale: torch.Tensor | None,
    out: torch.Tensor,
    scale: torch.Tensor | None,
    lengths_B: torch.Tensor | None,
    padded: int,
) -> None:
    batch, tokens, heads, dim = x_BTHD.shape
    x = x_BTHD if x_BTHD.stride(-1) == 1 else x_BTHD.contiguous()
    quantize_kernel[(triton.cdiv(padded, rows), batch * heads)](
        x,
        center,
        channel_scale,
        out,
        scale,
        lengths_B,
        tokens,
        padded,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        HEADS=heads,
        DIM=dim,
        ROWS=rows,
        BLOCK_D=1 << (dim - 1).bit_length(),
        FLOAT8=channel_scale is not None,
        INTERPRETED=triton.knobs.runtime.interpret,
        num_warps=8,
    )
